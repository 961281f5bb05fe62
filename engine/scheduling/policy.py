"""What a policy is: a pure choice of who comes in and who runs, from a read-only view.

A policy never moves a request, never asks for a block and keeps no state: everything it may use is in the view, so
that each one is a few lines that can be tested with plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.scheduling.request import Request
from engine.telemetry.record import WaitReason

Selection = Callable[[Sequence[Request], int], list[Request]]
"""Who decodes when more are ready than fit: (ready requests in order of admission, how many) → the chosen ones."""


@dataclass(frozen=True, slots=True)
class View:
    """What a policy may look at. Requests are not to be changed.

    `prefilling` and `decoding` hold keys and values, in order of admission. `waiting_since_s` is the arrival of the
    first in the queue. `num_admitted_now` counts those that came in during this very step.
    """

    now_s: float
    prefilling: Sequence[Request]
    decoding: Sequence[Request]
    num_queued: int
    waiting_since_s: float
    num_admitted_now: int
    num_slots: int
    """Slots that a running cohort holds, ended members included (static)."""
    max_num_seqs: int
    token_budget: int
    prefill_threshold: int
    cohort_wait_s: float
    select: Selection

    @property
    def num_running(self) -> int:
        """Requests that hold keys and values."""
        return len(self.prefilling) + len(self.decoding)


@dataclass(frozen=True, slots=True)
class Work:
    """Compute the next `num_tokens` tokens of a request, and `num_padding` rows for nothing."""

    request: Request
    num_tokens: int
    num_padding: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """Who runs in this step. `idle_reason` is why the others that hold keys and values do not."""

    work: tuple[Work, ...] = ()
    num_inactive_rows: int = 0
    idle_reason: WaitReason = WaitReason.NO_SLOT


class Policy(Protocol):
    """Two questions, both pure. `closes_batch`: nobody joins what runs, and ended members keep their slot."""

    name: str
    closes_batch: bool

    def holds_back(self, view: View) -> WaitReason | None:
        """Why the first in the queue may not come in now; None when it may, if there is memory for it."""

    def choose(self, view: View) -> Choice:
        """What the requests that hold keys and values do in this step."""


def wake_time(view: View) -> float:
    """When a forming cohort closes, on the engine's clock."""
    return view.waiting_since_s + view.cohort_wait_s


def round_robin(ready: Sequence[Request], count: int) -> list[Request]:
    """Those whose last turn is longest ago."""
    if len(ready) <= count:
        return list(ready)
    return sorted(ready, key=lambda request: request.last_scheduled_step)[:count]


def sticky(ready: Sequence[Request], count: int) -> list[Request]:
    """The same ones until they end: those admitted first."""
    return list(ready[:count])


SELECTIONS: dict[str, Selection] = {"round_robin": round_robin, "sticky": sticky}
