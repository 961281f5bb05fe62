"""Asks an OpenAI-compatible server for one answer and reads it as it comes.

Owns the bodies that are sent and the events that come back. Never knows how the answer is shown.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving.remote_texts import RemotePrompt

MAX_ERROR_CHARS = 300
MAX_EVENT_CHARS = 4 << 20


class RemoteFailure(Exception):
    """The other server refused or failed; its own words, shortened."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text, or the end, or the usage."""

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """What a server says of its model; vLLM and this project also tell the context's length."""

    name: str
    max_model_len: int | None


def first_model(url: str, api_key: str | None) -> RemoteModel:
    """The first model that the server at `url` lists. Raises RemoteFailure."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx.get(f"{url}/v1/models", headers=headers, timeout=15.0)
        if answer.status_code != 200:
            raise RemoteFailure(_error_words(answer.status_code, answer.content))
        card = answer.json()["data"][0]
        length = card.get("max_model_len")
        return RemoteModel(str(card["id"]), length if isinstance(length, int) and length > 1 else None)
    except httpx.HTTPError as error:
        raise RemoteFailure(f"no server answers there ({type(error).__name__})") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise RemoteFailure("what answers there is no OpenAI-compatible server: it lists no model") from None


def request_for(
    prompt: Sequence[int], params: SamplingParams, model: str, seed: int | None
) -> tuple[str, dict[str, Any]]:
    """(route, body) for one answer. Raises InvalidRequest for what cannot be asked of another server."""
    if params.logprobs is not None:
        raise InvalidRequest(
            "log-probabilities are not passed on by an attached page; ask the server itself", "logprobs"
        )
    body: dict[str, Any] = {
        "model": model,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    # Fields that not every server knows are sent only where they ask for something.
    optional = {
        "max_tokens": params.max_tokens,
        "seed": seed,
        "stop": list(params.stop) or None,
        "top_k": params.top_k if params.top_k > 0 else None,
        "min_p": params.min_p or None,
        "presence_penalty": params.presence_penalty or None,
        "frequency_penalty": params.frequency_penalty or None,
        "repetition_penalty": params.repetition_penalty if params.repetition_penalty != 1.0 else None,
        "ignore_eos": params.ignore_eos or None,
        "min_tokens": params.min_tokens or None,
    }
    body |= {name: value for name, value in optional.items() if value is not None}
    if isinstance(prompt, RemotePrompt) and prompt.messages is not None:
        body["messages"] = prompt.messages
        if prompt.template_kwargs:
            body["chat_template_kwargs"] = prompt.template_kwargs
        return "/v1/chat/completions", body
    body["prompt"] = prompt.text if isinstance(prompt, RemotePrompt) else list(prompt)
    return "/v1/completions", body


async def ask(client: httpx.AsyncClient, route: str, body: dict[str, Any]) -> AsyncIterator[Piece]:
    """The answer's pieces. Raises RemoteFailure, and httpx's errors when the connection fails.

    Closing this iterator closes the connection, which is how every such server is told to stop.
    """
    async with client.stream("POST", route, json=body) as response:
        if response.status_code != 200:
            raise RemoteFailure(_error_words(response.status_code, await response.aread()))
        async for line in response.aiter_lines():
            if line.startswith("data: {") and len(line) < MAX_EVENT_CHARS:
                yield _piece(json.loads(line[6:]))


def _piece(event: dict[str, Any]) -> Piece:
    if "error" in event:
        raise RemoteFailure(_shortened(event["error"]))
    text, reason = "", None
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or choice
        text += str(delta.get("content") or delta.get("text") or "")
        reason = choice.get("finish_reason") or reason
    return Piece(text, reason, event.get("usage"))


def _error_words(status: int, body: bytes) -> str:
    try:
        said = json.loads(body)
        return f"HTTP {status}: {_shortened(said.get('error', said))}"
    except (ValueError, AttributeError):
        return f"HTTP {status}"


def _shortened(error: Any) -> str:
    words = error.get("message", "") if isinstance(error, dict) else error
    return str(words)[:MAX_ERROR_CHARS]
