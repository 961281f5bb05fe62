"""What a step record alone does not tell and a replay needs: what came from outside, and which tokens were alike.

Owns the arrivals, aborts and changes of settings between steps, in their order, with numbers in place of tokens (see
`engine.telemetry.prefix_numbers`), for as many steps as the record ring keeps. Written by the engine thread, read by
any. Never knows a scheduler, and keeps no token once it has its number.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.telemetry.prefix_numbers import Place, PrefixNumbers, Range
from engine.telemetry.record import EventKind, StepRecord


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request came. `prompt` are its tokens' numbers; `max_tokens` is as the engine cut it."""

    request_id: int
    prompt: tuple[Range, ...]
    max_tokens: int
    arrival_s: float
    sibling_of: int | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return sum(count for _, count in self.prompt)


@dataclass(frozen=True, slots=True)
class Abort:
    """Somebody ended a request."""

    request_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class Change:
    """Somebody changed settings; `settings` holds names and new values."""

    settings: Mapping[str, Any]


Input = Arrival | Abort | Change


@dataclass(frozen=True, slots=True)
class Entry:
    """`inputs` are what came between step `step - 1` and `step`, in order; `tokens` the number of the token that each
    request got in it."""

    step: int
    inputs: tuple[Input, ...] = ()
    tokens: Mapping[int, int] = field(default_factory=dict)


class Asked(Protocol):
    """What the journal reads of a request (`engine.scheduling.request.Request`)."""

    request_id: int
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    arrival_s: float
    sibling_of: int | None


class Sampled(Protocol):
    """What the journal reads of a runner's answer (`engine.scheduling.plan.SampledToken`)."""

    @property
    def token_id(self) -> int:
        """The token."""


class Journal:
    """One engine's life in inputs. `start_s` is the engine's clock at its start, `settings` those it started with."""

    def __init__(self, start_s: float, settings: Mapping[str, Any], capacity: int = 4096) -> None:
        self.start_s = start_s
        self.settings = dict(settings)
        self._numbers = PrefixNumbers()
        self._places: dict[int, Place] = {}
        self._inputs: list[Input] = []
        self._entries: deque[Entry] = deque(maxlen=capacity)
        self._lock = threading.Lock()

    # -- engine thread -----------------------------------------------------------------------------------------

    def arrived(self, request: Asked) -> None:
        """A request was queued."""
        place, prompt = self._numbers.begin(request.prompt_token_ids)
        self._places[request.request_id] = place
        arrival = Arrival(request.request_id, tuple(prompt), request.max_tokens, request.arrival_s, request.sibling_of)
        self._inputs.append(arrival)

    def aborted(self, request_id: int, reason: str) -> None:
        """A request that was here was ended from outside."""
        self._inputs.append(Abort(request_id, reason))

    def changed(self, settings: Mapping[str, Any]) -> None:
        """Settings were changed from outside."""
        self._inputs.append(Change(dict(settings)))

    def stepped(self, record: StepRecord, sampled: Mapping[int, Sampled]) -> None:
        """A step is over: `record` says what it did, `sampled` which tokens it made."""
        tokens = {
            request_id: self._numbers.extend(self._places[request_id], token.token_id)
            for request_id, token in sampled.items()
            if request_id in self._places
        }
        # What the pool may still share must be known here; the pool forgets in about the same order.
        self._numbers.max_tokens = max(1 << 18, min(1 << 24, 4 * record.num_blocks * record.block_size))
        for event in record.events:
            if event.kind is EventKind.FINISHED and event.request_id in self._places:
                self._numbers.end(self._places.pop(event.request_id))
        inputs, self._inputs = tuple(self._inputs), []
        self.remember(Entry(record.step, inputs, tokens))

    def remember(self, entry: Entry) -> None:
        """Keep an entry that was made elsewhere (a recorded run that is played)."""
        with self._lock:
            self._entries.append(entry)

    # -- any thread --------------------------------------------------------------------------------------------

    @property
    def newest(self) -> Entry | None:
        """The entry of the newest step."""
        with self._lock:
            return self._entries[-1] if self._entries else None

    def entries(self, first: int, last: int) -> Sequence[Entry]:
        """The entries of steps `first` to `last` that are still kept, oldest first."""
        with self._lock:
            return [entry for entry in self._entries if first <= entry.step <= last]
