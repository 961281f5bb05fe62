"""An answer on its way from the engine thread to whoever asked: a buffer between two worlds.

Owns the tokens that were made and not yet read, and turns them into text where they are read, so that detokenizing
costs the engine nothing and a slow reader stops nobody. Never knows HTTP, pages or the scheduler.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.scheduling.plan import SampledToken
from engine.scheduling.sampling_params import SamplingParams
from engine.text.assembler import TextAssembler


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """What one finished request took, in seconds and tokens; None where it never got that far."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    e2e_s: float
    queue_s: float | None = None
    ttft_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None

    @classmethod
    def from_event(cls, details: Mapping[str, Any]) -> RequestMetrics:
        """From the details of a `finished` event."""
        return cls(
            num_prompt_tokens=details["num_prompt_tokens"],
            num_output_tokens=details["num_output_tokens"],
            num_cached_tokens=details["cached_tokens"],
            num_preemptions=details["num_preemptions"],
            e2e_s=details["e2e_s"],
            queue_s=details.get("queue_s"),
            ttft_s=details.get("ttft_s"),
            prefill_s=details.get("prefill_s"),
            decode_s=details.get("decode_s"),
        )

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second while decoding, the first one not counted; None below two tokens."""
        if not self.decode_s or self.num_output_tokens < 2:
            return None
        return (self.num_output_tokens - 1) / self.decode_s


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """What is new in an answer. The last chunk has `finish_reason` ("stop", "length", "abort" or "error") and
    `metrics`; `error` says in words what went wrong. `logprobs` holds one entry a token."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[SampledToken, ...] = ()
    finish_reason: str | None = None
    error: str | None = None
    metrics: RequestMetrics | None = None


@dataclass(frozen=True, slots=True)
class _End:
    finish_reason: str
    error: str | None
    metrics: RequestMetrics | None


class RequestStream:
    """One answer, to be read once, by one reader: `async for chunk in stream`, or `for chunk in stream`.

    Leaving either loop early aborts the request. What is not read is kept; it is bounded by `max_tokens`.
    """

    def __init__(
        self,
        request_id: int,
        num_prompt_tokens: int,
        params: SamplingParams,
        assembler: TextAssembler | None,
        eos_token_ids: frozenset[int],
        cancel: Callable[[int], object],
    ) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.params = params
        self._assembler = assembler
        self._eos_token_ids = frozenset() if params.ignore_eos else eos_token_ids
        self._cancel = cancel
        self._tokens: list[SampledToken] = []
        self._end: _End | None = None
        self._is_over = False
        self._changed = threading.Condition()
        self._wake_reader: Callable[[], None] | None = None

    # -- engine thread -----------------------------------------------------------------------------------------

    def push(self, token: SampledToken) -> None:
        """The next token was made."""
        with self._changed:
            self._tokens.append(token)
            self._notify()

    def end(
        self,
        finish_reason: str,
        error: str | None = None,
        metrics: RequestMetrics | None = None,
        last_token: SampledToken | None = None,
    ) -> None:
        """No token follows. `last_token` is the one the answer ended with: nobody sees it without its finish reason,
        since what it shows may depend on that."""
        with self._changed:
            if self._end is None:
                if last_token is not None:
                    self._tokens.append(last_token)
                self._end = _End(finish_reason, error, metrics)
                self._notify()

    def _notify(self) -> None:
        self._changed.notify_all()
        if self._wake_reader is not None:
            wake, self._wake_reader = self._wake_reader, None
            wake()

    # -- the reader --------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the last chunk has been read."""
        return self._is_over

    def cancel(self) -> None:
        """Abort the request; the stream then ends with "abort". Does nothing when it is over."""
        if not self._is_over:
            self._cancel(self.request_id)

    def __iter__(self) -> Iterator[StreamChunk]:
        try:
            while not self._is_over:
                yield self.read()
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncIterator[StreamChunk]:
        try:
            while not self._is_over:
                chunk = await self.read_async()
                if chunk is not None:
                    yield chunk
        finally:
            self.cancel()

    def read(self, timeout_s: float | None = None) -> StreamChunk:
        """Everything new, waiting for it. Raises TimeoutError when nothing came in time."""
        with self._changed:
            if not self._changed.wait_for(self._has_news, timeout_s):
                raise TimeoutError("no token came in time")
            news = self._take()
        return self._chunk(*news)

    async def read_async(self, timeout_s: float | None = None) -> StreamChunk | None:
        """Everything new, waiting for it; None when nothing came in time."""
        loop = asyncio.get_running_loop()
        is_there = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(is_there.set)
            except RuntimeError:  # the reader's loop is closed: nobody reads any more
                self._cancel(self.request_id)

        with self._changed:
            has_news = self._has_news()
            if not has_news:
                self._wake_reader = wake
        try:
            if not has_news:
                await asyncio.wait_for(is_there.wait(), timeout_s)
        except TimeoutError:
            return None
        finally:
            with self._changed:
                self._wake_reader = None
        with self._changed:
            news = self._take()
        return self._chunk(*news)

    def result(self, timeout_s: float | None = None) -> StreamChunk:
        """The whole answer as one chunk. Raises TimeoutError when a token takes longer than `timeout_s`."""
        chunks = []
        while not self._is_over:
            chunks.append(self.read(timeout_s))
        return join_chunks(chunks)

    def _has_news(self) -> bool:
        return bool(self._tokens) or self._end is not None

    def _take(self) -> tuple[tuple[SampledToken, ...], _End | None]:
        """What is new. Text is made of it only after the lock was given back: the engine thread may want it."""
        tokens, self._tokens = tuple(self._tokens), []
        return tokens, self._end

    def _chunk(self, tokens: tuple[SampledToken, ...], end: _End | None) -> StreamChunk:
        text = "".join(self._text_of(token, is_last=i == len(tokens) - 1, end=end) for i, token in enumerate(tokens))
        ids = tuple(token.token_id for token in tokens)
        logprobs = tokens if self.params.logprobs is not None else ()
        if end is None:
            return StreamChunk(text, ids, logprobs)
        self._is_over = True
        text += self._assembler.finish() if self._assembler else ""
        return StreamChunk(text, ids, logprobs, end.finish_reason, end.error, end.metrics)

    def _text_of(self, token: SampledToken, is_last: bool, end: _End | None) -> str:
        if self._assembler is None:
            return ""
        ends_the_answer = is_last and end is not None and end.finish_reason == "stop"
        if ends_the_answer and token.token_id in self._eos_token_ids:
            return ""  # an end-of-sequence token belongs to the answer's tokens, not to its text
        return self._assembler.push(token.token_id).text


def join_chunks(chunks: list[StreamChunk]) -> StreamChunk:
    """Consecutive chunks of one answer as one."""
    last = chunks[-1]
    return StreamChunk(
        "".join(chunk.text for chunk in chunks),
        tuple(token_id for chunk in chunks for token_id in chunk.token_ids),
        tuple(token for chunk in chunks for token in chunk.logprobs),
        last.finish_reason,
        last.error,
        last.metrics,
    )
