"""A service without an engine: each request gets the tokens that its prompt spells out, at the pace it is told.

For tests of the HTTP form alone; what the engine does is tested with the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.scheduling.plan import SampledToken
from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving.service_errors import EngineDead, QueueFull
from engine.telemetry.record import StepRecord
from engine.telemetry.ring import RecordRing, Steps


class FakeTokenizer:
    """One token a character."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(map(chr, token_ids))

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()

    def chat_tokens(self, messages: Sequence[dict[str, str]], **kwargs: Any) -> list[int]:
        return self.encode("".join(f"{m['role'][0]}:{m['content']}\n" for m in messages))


@dataclass(frozen=True)
class Metric:
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int


@dataclass(frozen=True)
class Chunk:
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[SampledToken, ...] = ()
    finish_reason: str | None = None
    error: str | None = None
    metrics: Metric | None = None


@dataclass
class FakeStream:
    """Answers with the prompt's own tokens. A prompt with an `E` fails at it."""

    request_id: int
    prompt: Sequence[int]
    params: SamplingParams
    service: FakeService
    cancelled: bool = False
    num_read: int = 0

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        limit = min(self.params.max_tokens or 1000, len(self.prompt))
        while self.service.is_held and not self.cancelled:
            await asyncio.sleep(0.01)
        for i, token in enumerate(self.prompt[:limit]):
            if self.cancelled:
                yield Chunk(finish_reason="abort", metrics=Metric(len(self.prompt), i, 0))
                return
            if chr(token) == "E":
                yield Chunk(finish_reason="error", error="its logits were not numbers")
                return
            await asyncio.sleep(self.service.token_s)
            self.num_read += 1
            logprobs: tuple[SampledToken, ...] = ()
            if self.params.logprobs is not None:
                top = tuple((ord("a") + k, -0.5 * (k + 1)) for k in range(self.params.logprobs))
                logprobs = (SampledToken(token, -0.25, top),)
            yield Chunk(chr(token), (token,), logprobs)
        reason = "length" if limit == self.params.max_tokens else "stop"
        yield Chunk(finish_reason=reason, metrics=Metric(len(self.prompt), limit, 1))

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class FakeService:
    token_s: float = 0.0
    max_queue: int = 100
    is_held: bool = False
    dead: str | None = None
    streams: list[FakeStream] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    ring: RecordRing = field(default_factory=lambda: RecordRing("e1"))

    def submit(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, *, client: str | None = None
    ) -> list[FakeStream]:
        if self.dead:
            raise EngineDead(self.dead)
        if not prompt_token_ids:
            raise InvalidRequest("the prompt is empty; send at least one token", "prompt")
        if sum(not s.cancelled for s in self.streams) + params.n > self.max_queue:
            raise QueueFull(f"{self.max_queue} requests wait, which is the limit (--max-queue); try again later")
        new = [FakeStream(len(self.streams) + i + 1, prompt_token_ids, params, self) for i in range(params.n)]
        self.streams += new
        return new

    def control(self, changes: dict[str, Any]) -> dict[str, Any]:
        self.changes.append(changes)
        return self.state() | changes

    def state(self) -> dict[str, Any]:
        return {"step": self.ring.newest, "max_model_len": 128, "paused": False}

    def steps(self, since: int | None = None, epoch: str | None = None, limit: int | None = None) -> Steps:
        return self.ring.since(since, epoch, limit)

    def add_listener(self, listener: Any) -> None:
        self.listener = listener

    def record_steps(self, count: int) -> None:
        for _ in range(count):
            self.ring.append(StepRecord(self.ring.newest + 1, 0.0, "mixed", "paged", 512, 8, 16, 16))

    def health(self) -> str | None:
        return self.dead
