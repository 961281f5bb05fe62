"""OpenAI's routes: list the model, complete a text, answer a conversation.

Owns the way from an HTTP request to the engine's streams and back. Never knows scheduling; whatever the engine says
of a request (refused, failed, ended) is passed on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving.connection import ClientGone, EventStreamResponse, unless_gone
from engine.serving.errors import ApiError, as_api_error
from engine.serving.interleave import interleave
from engine.serving.json_body import body_schema, read_json
from engine.serving.openai_response import ChatForm, CompletionForm, Envelope, Form, Piece, Usage
from engine.serving.openai_types import ChatRequest, CompletionRequest, GenerationRequest
from engine.serving.service_errors import EngineDead
from engine.text.tokenizer_files import TextError

if TYPE_CHECKING:
    from engine.serving.remote_texts import RemoteTexts
    from engine.serving.service import EngineService
    from engine.serving.stream import RequestStream, StreamChunk
    from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class _Job:
    """One HTTP request on its way: its streams in the order of the choices, `n` for each prompt."""

    service: EngineService
    form: Form
    envelope: Envelope
    streams: Sequence[RequestStream]
    n: int
    includes_usage: bool
    includes_token_ids: bool
    prompts: Sequence[Sequence[int]]

    def cancel(self) -> None:
        """Nobody waits for the answers any more."""
        for stream in self.streams:
            stream.cancel()


class _Tally:
    """Counts what `usage` tells, the same way for streams and whole answers.

    An answer's own metrics are right where they exist; only those that broke off are counted here.
    """

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._prompt_tokens = [len(prompt) for prompt in job.prompts]
        self._completion_tokens = [0] * len(job.streams)
        self._cached_tokens = 0

    def count(self, index: int, chunk: StreamChunk) -> None:
        """Take `chunk` of choice `index` into account; what a prompt is counts once, with its first answer."""
        self._completion_tokens[index] += len(chunk.token_ids)
        if chunk.metrics is not None:
            self._completion_tokens[index] = chunk.metrics.num_output_tokens
            if index % self._job.n == 0:
                self._prompt_tokens[index // self._job.n] = chunk.metrics.num_prompt_tokens
                self._cached_tokens += chunk.metrics.num_cached_tokens

    def usage(self) -> Usage:
        """The counts so far."""
        return Usage(sum(self._prompt_tokens), sum(self._completion_tokens), self._cached_tokens)


def openai_router(service: EngineService, tokenizer: Tokenizer | RemoteTexts, model_name: str) -> APIRouter:
    """The routes under `/v1`."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])
    started_s = int(time.time())

    @router.get("/models")
    async def list_models() -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [_model_card(service, model_name, started_s)]}

    @router.get("/models/{name:path}")
    async def show_model(name: str) -> dict[str, Any]:
        """The model by name."""
        _check_model(name, model_name)
        return _model_card(service, model_name, started_s)

    @router.post("/completions", openapi_extra=body_schema(CompletionRequest))
    async def complete(request: Request) -> Response:
        """Continue one prompt or several."""
        body = await read_json(request, CompletionRequest)
        params = _checked(body, model_name)
        prompts = await asyncio.to_thread(_prompt_tokens, tokenizer, body)
        return await _answer(request, service, body, params, prompts, CompletionForm(tokenizer), model_name)

    @router.post("/chat/completions", openapi_extra=body_schema(ChatRequest))
    async def chat(request: Request) -> Response:
        """Answer the last message of a conversation."""
        body = await read_json(request, ChatRequest)
        params = _checked(body, model_name)
        prompt = await asyncio.to_thread(_chat_tokens, tokenizer, body)
        return await _answer(request, service, body, params, [prompt], ChatForm(tokenizer), model_name)

    return router


async def _answer(
    request: Request,
    service: EngineService,
    body: GenerationRequest,
    params: SamplingParams,
    prompts: Sequence[Sequence[int]],
    form: Form,
    model_name: str,
) -> Response:
    streams = _submit_all(service, prompts, params)
    envelope = Envelope(form, model_name, streams[0].request_id)
    job = _Job(service, form, envelope, streams, params.n, body.includes_usage, bool(body.return_token_ids), prompts)
    if body.stream:
        return EventStreamResponse(_events(job), job.cancel)
    try:
        return JSONResponse(await unless_gone(request, _whole(job)))
    except ClientGone:
        return Response(status_code=499)  # nobody reads it
    finally:
        job.cancel()


def _submit_all(
    service: EngineService, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> list[RequestStream]:
    """All or none: when one prompt is refused, those before it are taken back."""
    streams: list[RequestStream] = []
    try:
        for prompt in prompts:
            streams += service.submit(prompt, params)
    except Exception:
        for stream in streams:
            stream.cancel()
        raise
    return streams


async def _whole(job: _Job) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    tally = _Tally(job)
    for index, stream in enumerate(job.streams):
        piece = Piece()
        async for chunk in stream:
            _raise_if_failed(job, chunk)
            tally.count(index, chunk)
            piece.text += chunk.text
            piece.token_ids += chunk.token_ids
            piece.logprobs += chunk.logprobs
            piece.finish_reason = chunk.finish_reason
        choices.append(job.form.whole(index, piece) | _token_ids(job, index, piece.token_ids, is_first=True))
    return job.envelope.whole(choices, tally.usage())


async def _events(job: _Job) -> AsyncGenerator[bytes, None]:
    """The stream's events. A failure inside it can only be told as one more event."""
    tally = _Tally(job)
    begun: set[int] = set()
    nothing = {"usage": None} if job.includes_usage else {}
    try:
        async for index, chunk in interleave(job.streams):
            _raise_if_failed(job, chunk)
            tally.count(index, chunk)
            is_first = index not in begun
            if is_first:
                begun.add(index)
                opening = job.form.opening(index)
                if opening is not None:
                    yield _event(job.envelope.chunk([opening]) | nothing)
            if chunk.text or chunk.finish_reason or chunk.logprobs or (chunk.token_ids and job.includes_token_ids):
                piece = Piece(chunk.text, list(chunk.token_ids), list(chunk.logprobs), chunk.finish_reason)
                delta = job.form.delta(index, piece) | _token_ids(job, index, piece.token_ids, is_first)
                yield _event(job.envelope.chunk([delta]) | nothing)
        if job.includes_usage:
            yield _event(job.envelope.chunk([]) | {"usage": tally.usage().to_dict()})
    except Exception as error:
        yield _event(as_api_error(error).body())
    yield b"data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n\n"


def _raise_if_failed(job: _Job, chunk: StreamChunk) -> None:
    if chunk.finish_reason == "error":
        if (reason := job.service.health()) is not None:
            raise EngineDead(reason)
        raise ApiError(500, chunk.error or "this request failed in the engine; others are not affected")


def _token_ids(job: _Job, index: int, token_ids: list[int], is_first: bool) -> dict[str, Any]:
    """vLLM's `return_token_ids`: the prompt's beside the first tokens of each choice."""
    if not job.includes_token_ids:
        return {}
    prompt = {"prompt_token_ids": list(job.prompts[index // job.n])} if is_first else {}
    return {"token_ids": token_ids} | prompt


def _checked(body: GenerationRequest, model_name: str) -> SamplingParams:
    _check_model(body.model, model_name)
    body.check_supported()
    return body.sampling_params()


def _check_model(asked: str | None, served: str) -> None:
    if asked is not None and asked != served:
        raise ApiError(
            404,
            f"there is no such model here; this server has {served!r} (GET /v1/models lists it)",
            param="model",
            code="model_not_found",
        )


def _prompt_tokens(tokenizer: Tokenizer | RemoteTexts, body: CompletionRequest) -> list[Sequence[int]]:
    try:
        return [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in body.prompts()]
    except TextError as error:
        raise InvalidRequest(str(error), "prompt") from None


def _chat_tokens(tokenizer: Tokenizer | RemoteTexts, body: ChatRequest) -> Sequence[int]:
    try:
        return tokenizer.chat_tokens(body.conversation(), **(body.chat_template_kwargs or {}))
    except TextError as error:
        raise InvalidRequest(str(error), "messages") from None


def _model_card(service: EngineService, name: str, created_s: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "tiny-vllm-playground",
        "max_model_len": service.state()["max_model_len"],
    }
