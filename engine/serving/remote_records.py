"""Step records made up from outside: what was seen of a server in the last second, in the words of our telemetry.

Owns what may honestly be said: our own requests by id, all others as a number, memory as the share that the server
tells. Reasons, block tables and step times stay empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.serving.remote_figures import RemoteFigures
from engine.telemetry.record import Event, EventKind, StepRecord

OTHERS_FROM = 1_000_000
"""Requests of other people are shown under ids from here on: how many there are is known, which they are is not."""
UNKNOWN = "unknown"
MAX_OTHERS = 2000
"""More of them than anybody can tell apart on a page are not shown."""
MAX_BLOCKS = 10_000_000
ASSUMED_BLOCKS = 1000
"""When a server tells only the share of memory in use, it is shown as so many blocks of a thousand."""


@dataclass(slots=True)
class Sent:
    """One of our requests, as far as it can be seen."""

    request_id: int
    num_prompt_tokens: int
    max_tokens: int
    arrival_s: float
    num_output_tokens: int = 0
    num_told: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None

    def got_token(self, now_s: float) -> None:
        """A piece of the answer has come."""
        self.first_token_s = now_s if self.first_token_s is None else self.first_token_s
        self.last_token_s = now_s
        self.num_output_tokens += 1

    @property
    def ttft_s(self) -> float | None:
        """Sending to first piece."""
        return self.first_token_s - self.arrival_s if self.first_token_s is not None else None

    @property
    def decode_s(self) -> float | None:
        """First to last piece."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        return self.last_token_s - self.first_token_s


class RemoteRecords:
    """Makes one record after the other. `arrived` and `ended` note what happened since the last one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start_s = self._last_s = clock()
        self._step = 0
        self._events: list[Event] = []
        self._ended: list[Sent] = []
        self._newest: StepRecord | None = None

    def arrived(self, sent: Sent) -> None:
        """One of our requests was sent."""
        details = {"num_prompt_tokens": sent.num_prompt_tokens, "max_tokens": sent.max_tokens}
        arrival_s = sent.arrival_s - self._start_s
        self._events.append(Event(EventKind.ARRIVED, sent.request_id, details | {"arrival_s": arrival_s}))

    def ended(self, sent: Sent, reason: str, e2e_s: float) -> None:
        """One of our requests has ended."""
        times = {"ttft_s": sent.ttft_s, "decode_s": sent.decode_s}
        details = {"reason": reason, "num_output_tokens": sent.num_output_tokens, "e2e_s": e2e_s}
        known = {name: value for name, value in times.items() if value is not None}
        self._ended.append(sent)
        self._events.append(Event(EventKind.FINISHED, sent.request_id, details | known))

    def next(self, figures: RemoteFigures, live: Sequence[Sent]) -> StepRecord:
        """The record of the time since the last one."""
        now_s = self._clock()
        self._step += 1
        seen = [*live, *self._ended]
        answering = [sent.request_id for sent in seen if sent.first_token_s is not None]
        waiting = [sent.request_id for sent in seen if sent.first_token_s is None]
        others_running = min(MAX_OTHERS, max(0, round(figures.num_running or 0) - len(answering)))
        others_waiting = min(MAX_OTHERS, max(0, round(figures.num_waiting or 0) - len(waiting)))
        others = range(OTHERS_FROM, OTHERS_FROM + others_running + others_waiting)
        num_tokens = self._note_new_tokens(seen)
        num_blocks = min(MAX_BLOCKS, round(figures.num_blocks or ASSUMED_BLOCKS))
        block_size = round(figures.block_size or 1)
        num_active = round(min(1.0, figures.kv_usage or 0.0) * num_blocks)
        record = StepRecord(
            step=self._step,
            time_s=self._last_s - self._start_s,
            policy=UNKNOWN,
            kv_layout=UNKNOWN,
            token_budget=sum(num_tokens.values()),
            max_num_seqs=max(1, len(answering) + others_running),
            num_blocks=num_blocks,
            block_size=block_size,
            pending_prefill=(*waiting, *others[others_running:]),
            pending_decode=(*answering, *others[:others_running]),
            active_decode=tuple(request_id for request_id in answering if request_id in num_tokens),
            num_tokens=num_tokens,
            outputs={sent.request_id: sent.num_output_tokens for sent in seen if sent.request_id in num_tokens},
            num_free_blocks=num_blocks - num_active,
            num_active_blocks=num_active,
            num_stored_tokens=num_active * block_size,
            num_preemptions=round(figures.num_preemptions or 0),
            prefix_query_tokens=round(figures.prefix_query_tokens or 0),
            prefix_hit_tokens=round(figures.prefix_hit_tokens or 0),
            events=tuple(sorted(self._events, key=lambda event: event.kind is EventKind.FINISHED)),
            duration_s=now_s - self._last_s,
        )
        self._last_s, self._events, self._ended = now_s, [], []
        self._newest = record
        return record

    def _note_new_tokens(self, seen: Sequence[Sent]) -> dict[int, int]:
        """How many tokens each of our requests got since the last record."""
        num_tokens = {}
        for sent in seen:
            fresh = sent.num_output_tokens - sent.num_told
            if fresh > 0:
                if sent.num_told == 0 and sent.ttft_s is not None:
                    self._events.append(Event(EventKind.FIRST_TOKEN, sent.request_id, {"ttft_s": sent.ttft_s}))
                num_tokens[sent.request_id] = fresh
                sent.num_told = sent.num_output_tokens
        return num_tokens

    def state(self) -> dict[str, Any]:
        """What `/engine/state` can say."""
        record = self._newest
        return {
            "step": record.step if record else 0,
            "policy": UNKNOWN,
            "decode_selection": UNKNOWN,
            "kv_layout": UNKNOWN,
            "prefix_caching": bool(record and record.prefix_query_tokens),
            "block_size": record.block_size if record else 1,
            "num_blocks": record.num_blocks if record else ASSUMED_BLOCKS,
            "num_free_blocks": record.num_free_blocks if record else ASSUMED_BLOCKS,
            "num_cached_blocks": 0,
            "num_active_blocks": record.num_active_blocks if record else 0,
            "pending_prefill": list(record.pending_prefill) if record else [],
            "pending_decode": list(record.pending_decode) if record else [],
            "active_decode": list(record.active_decode) if record else [],
            "max_num_seqs": record.max_num_seqs if record else 1,
            "max_num_batched_tokens": 1,
            "max_queue": 0,
            "internal_fragmentation": 0.0,
            "external_fragmentation": 0.0,
            "num_preemptions": record.num_preemptions if record else 0,
            "paused": False,
            "step_delay_s": 0.0,
            "draining": False,
        }
