"""What a policy is: a pure choice of who comes in and who runs, from a read-only view.

A policy never moves a request, never asks for a block and keeps no state: everything it may use is in the view, so
that each one is a few lines that can be tested with plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from engine.scheduling.request import Request, State
from engine.settings import EngineSettings
from engine.telemetry.record import WaitReason

Selection = Callable[[Sequence[Request], int], list[Request]]
"""Who decodes when more are ready than fit: (ready requests in order of admission, how many) → the chosen ones."""


@dataclass(frozen=True, slots=True)
class View:
    """What a policy may look at. Requests are not to be changed.

    `prefilling` and `decoding` hold keys and values, in order of admission; `num_prefill_tokens` is what those in
    `prefilling` have still to compute. `waiting_since_s` is the arrival of the first in the queue. `num_admitted_now`
    counts those that came in during this very step.
    """

    now_s: float
    prefilling: Sequence[Request]
    decoding: Sequence[Request]
    num_prefill_tokens: int
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

    def after_admission(self, request: Request, queue: Sequence[Request]) -> View:
        """What there is to see once `request` has come in from the queue, which now is `queue`."""
        return replace(
            self,
            prefilling=[*self.prefilling, request],
            num_prefill_tokens=self.num_prefill_tokens + request.num_uncomputed_tokens,
            num_queued=len(queue),
            waiting_since_s=_waiting_since_s(queue, self.now_s),
            num_admitted_now=self.num_admitted_now + 1,
            num_slots=max(self.num_slots, self.num_running + 1),
        )

    def without(self, request_ids: Collection[int]) -> View:
        """The same, as if these requests held nothing."""
        return replace(
            self,
            prefilling=[request for request in self.prefilling if request.request_id not in request_ids],
            decoding=[request for request in self.decoding if request.request_id not in request_ids],
        )


@dataclass(frozen=True, slots=True)
class Work:
    """Compute the next `num_tokens` tokens of a request, and `num_padding` rows for nothing."""

    request: Request
    num_tokens: int
    num_padding: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """Who runs in this step. `idle_prefill` and `idle_decode` are why the others that hold keys and values do not."""

    work: tuple[Work, ...] = ()
    num_inactive_rows: int = 0
    idle_prefill: WaitReason = WaitReason.NO_SLOT
    idle_decode: WaitReason = WaitReason.NO_SLOT


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


def view_of(
    now_s: float,
    settings: EngineSettings,
    running: Iterable[Request],
    queue: Sequence[Request],
    num_slots: int,
    num_admitted_now: int,
) -> View:
    """The view of these requests; `running` in order of admission, `queue` by arrival."""
    prefilling: list[Request] = []
    decoding: list[Request] = []
    for request in running:
        (decoding if request.state is State.PENDING_DECODE else prefilling).append(request)
    return View(
        now_s=now_s,
        prefilling=prefilling,
        decoding=decoding,
        num_prefill_tokens=sum(request.num_uncomputed_tokens for request in prefilling),
        num_queued=len(queue),
        waiting_since_s=_waiting_since_s(queue, now_s),
        num_admitted_now=num_admitted_now,
        num_slots=num_slots,
        max_num_seqs=settings.max_num_seqs,
        token_budget=settings.max_num_batched_tokens,
        prefill_threshold=settings.prefill_threshold,
        cohort_wait_s=settings.cohort_wait_s,
        select=SELECTIONS[settings.decode_selection],
    )


def _waiting_since_s(queue: Sequence[Request], now_s: float) -> float:
    return queue[0].arrival_s if queue else now_s
