"""Conversations with the model: a message in, an answer that grows, its metrics line.

Owns how one chat run talks to the service and what the browser is told while it waits. Conversations live in the
browser alone. Never knows how answers are drawn (`static/page/`), nor anything of scheduling beyond a stream's words.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import gradio as gr

from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving.service_errors import EngineDead, QueueFull
from engine.telemetry.record import Wait
from viz.words import wait_in_words

if TYPE_CHECKING:
    from engine.serving.service import EngineService
    from engine.serving.stream import RequestStream, StreamChunk

YIELD_EVERY_S = 0.06
"""Answers grow at most this often: each update costs the server about a millisecond."""

POLL_EVERY_S = 0.4
"""A closed tab is noticed at the next yield, so something is yielded at least this often."""

MAX_MESSAGE_CHARS = 100_000

REFUSALS = (ValueError, QueueFull, EngineDead)
"""What the service and the tokenizer raise when they say no: invalid, no chat template, queue full, engine down."""

Answer = dict[str, Any]
"""One answer as the browser draws it: text, phase (waiting, answering, done), note, request, error, metrics, and
has_earlier: whether its prompt holds earlier messages too."""


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What a person set beside the message."""

    system: str = ""
    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def params(self) -> SamplingParams:
        """As the engine takes them. Raises InvalidRequest."""
        return SamplingParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
        )


def new_answer() -> Answer:
    """An answer of which nothing is known yet."""
    return {"role": "assistant", "text": "", "phase": "waiting", "note": "sent to the engine", "request": None}


def client_name(kind: str) -> str:
    """A name for the requests of one run. Whoever knows it can abort them, so nobody can guess it."""
    return f"{kind}-{secrets.token_urlsafe(12)}"


def abort_named(service: EngineService, value: Any) -> None:
    """Abort the requests of the run that `value` names (`client`); it comes from a browser and may be anything."""
    client = value.get("client") if isinstance(value, dict) else None
    if isinstance(client, str):
        service.abort_client(client)


async def follow(service: EngineService, stream: RequestStream, answer: Answer) -> AsyncIterator[bool]:
    """Read `stream` into `answer` to its end; yields True when the answer changed, False when it only waited.

    Yields at least every `POLL_EVERY_S`. Closing this generator early aborts the request.
    """
    answer["request"] = stream.request_id
    try:
        while answer["phase"] != "done":
            chunk = await stream.read_async(POLL_EVERY_S)
            if chunk is None:
                yield _note_waiting(service, stream, answer)
                continue
            _take(chunk, answer)
            yield True
            if answer["phase"] != "done":
                await asyncio.sleep(YIELD_EVERY_S)  # the stream gathers meanwhile what comes
    finally:
        stream.cancel()


def _note_waiting(service: EngineService, stream: RequestStream, answer: Answer) -> bool:
    """Say where a request that has no token yet stands; True when that is news."""
    if answer["text"]:
        return False
    request_id = stream.request_id
    note = queue_note(service.queue_position(request_id), service.wait_reason(request_id))
    if note == answer["note"]:
        return False
    answer["note"] = note
    return True


def queue_note(position: int | None, wait: Wait | None) -> str:
    """Where a request without a token stands, in words: its place in the queue, and why it is still there."""
    if position is None and wait is None:
        return "its prompt is being read"
    place = f"number {position} in the queue" if position is not None else "waits"
    return f"{place}: {wait_in_words(wait)}" if wait is not None else place


def _take(chunk: StreamChunk, answer: Answer) -> None:
    answer["text"] += chunk.text
    if chunk.token_ids or chunk.text:
        answer["phase"], answer["note"] = "answering", None
    if chunk.finish_reason is not None:
        answer["phase"], answer["note"] = "done", None
        answer["error"] = chunk.error
        if chunk.metrics is not None:
            rate = {"tokens_per_s": chunk.metrics.tokens_per_s, "finish_reason": chunk.finish_reason}
            answer["metrics"] = asdict(chunk.metrics) | rate


def messages_of(turns: Sequence[dict[str, Any]], system: str) -> list[dict[str, str]]:
    """The conversation as a chat template takes it; answers that failed are left out with their questions."""
    messages = [{"role": "system", "content": system}] if system.strip() else []
    for turn in turns:
        if turn.get("role") == "assistant" and not turn.get("text"):
            if messages and messages[-1]["role"] == "user":
                messages.pop()
            continue
        messages.append({"role": str(turn.get("role")), "content": str(turn.get("text", ""))})
    return messages


def prompt_tokens(tokenizer: Any, messages: Sequence[dict[str, str]]) -> Sequence[int]:
    """Token ids of a conversation. A base model without a chat template goes on from the bare last message."""
    if _takes_conversations(tokenizer):
        return tokenizer.chat_tokens(list(messages))
    return tokenizer.encode(messages[-1]["content"], add_special_tokens=True)


def _takes_conversations(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "has_chat_template", True))


class Chat:
    """The chat handlers of a page, bound to a service and a tokenizer."""

    def __init__(self, service: EngineService, tokenizer: Any) -> None:
        self._service = service
        self._tokenizer = tokenizer

    async def ask(self, value: Any, message: str, settings: ChatSettings) -> AsyncIterator[Any]:
        """Answer `message` in the conversation `value`; yields the conversation as it grows, or a skip."""
        turns, saved = _conversation(value)
        message = message.strip()
        if not message:
            raise gr.Error("The message is empty: write something first.", print_exception=False)
        if len(message) > MAX_MESSAGE_CHARS:
            raise gr.Error(
                f"The message has {len(message):,} characters; at most {MAX_MESSAGE_CHARS:,} are taken. Shorten it.",
                print_exception=False,
            )
        turns.append({"role": "user", "text": message})
        async for update in self._answer(turns, saved, settings):
            yield update

    async def again(self, value: Any, settings: ChatSettings) -> AsyncIterator[Any]:
        """Answer the last message once more."""
        turns, saved = _conversation(value)
        while turns and turns[-1].get("role") != "user":
            turns.pop()
        if not turns:
            raise gr.Error("There is nothing to regenerate yet: ask something first.", print_exception=False)
        async for update in self._answer(turns, saved, settings):
            yield update

    async def _answer(self, turns: list[Any], saved: list[Any], settings: ChatSettings) -> AsyncIterator[Any]:
        answer = new_answer()
        shown = {"turns": [*turns, answer], "saved": saved}
        yield shown
        try:
            messages = messages_of(turns, settings.system)
            prompt = prompt_tokens(self._tokenizer, messages)
            answer["has_earlier"] = _takes_conversations(self._tokenizer) and any(
                message["role"] == "assistant" for message in messages
            )
            answer["client"] = client_name("chat")
            stream = self._service.submit(prompt, settings.params(), client=answer["client"])[0]
        except REFUSALS as error:
            answer.update(phase="done", note=None, error=in_words(error))
            yield shown
            return
        async for changed in follow(self._service, stream, answer):
            yield shown if changed else gr.skip()

    def stop(self, value: Any) -> None:
        """Abort the request that the last answer of `value` stands for; its generator then ends by itself."""
        turns, _ = _conversation(value)
        abort_named(self._service, turns[-1] if turns else None)


def in_words(error: Exception) -> str:
    """An error as a person reads it."""
    if isinstance(error, InvalidRequest) and error.param:
        return f"{error} ({error.param})"
    return str(error)


def _conversation(value: Any) -> tuple[list[Any], list[Any]]:
    """Turns and saved conversations of what came from the browser, which may hold anything."""
    value = value if isinstance(value, dict) else {}
    turns = [turn for turn in value.get("turns") or [] if isinstance(turn, dict)]
    return turns, list(value.get("saved") or [])
