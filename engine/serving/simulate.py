"""A workload run in a blink: the real scheduler and memory, a clock that is told how long each step would take.

Owns the loop that feeds a workload to an engine on simulated time. Never knows threads, the wall clock or a model;
the workload's requests keep their numbers, so that the same request has the same id under every setting.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from engine.engine import Engine
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving.workload import Workload, WorkloadError, WorkloadRequest
from engine.settings import EngineSettings
from engine.simulated_runner import CostModel, SimulatedClock, SimulatedRunner
from engine.telemetry.record import EventKind, StepRecord

MAX_STEPS = 20_000
_VOCABULARY = range(1000, 30_000)
_END = 0
"""The end-of-sequence id of simulated answers; no prompt contains it."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What happened, step by step. `num_refused` requests could never run under these settings."""

    settings: EngineSettings
    records: tuple[StepRecord, ...]
    num_refused: int = 0


def simulate(
    workload: Workload,
    settings: EngineSettings,
    cost_model: CostModel | None = None,
    max_steps: int = MAX_STEPS,
    vocabulary: Sequence[int] = _VOCABULARY,
) -> SimulatedRun:
    """Run `workload` under `settings`. Answers have exactly the workload's lengths.

    Raises WorkloadError when it takes more than `max_steps` steps.
    """
    clock = SimulatedClock()
    runner = SimulatedRunner(clock, cost_model, lambda request: _next_token(workload, request))
    engine = Engine(runner, settings, clock)
    arrivals = _Arrivals(workload)
    records: list[StepRecord] = []
    num_refused = 0
    while True:
        for request in arrivals.due(clock.now_s):
            try:
                engine.add(_request(workload, request, clock.now_s, vocabulary))
            except InvalidRequest:
                num_refused += 1
                arrivals.ended(request.index, clock.now_s)
        record = engine.step()
        if record is not None:
            records.append(record)
            for event in record.events:
                if event.kind is EventKind.FINISHED and event.request_id is not None:
                    arrivals.ended(event.request_id - 1, clock.now_s)
            if len(records) > max_steps:
                raise WorkloadError(
                    f"this workload takes more than {max_steps:,} steps; send fewer requests or ask shorter answers"
                )
            continue
        wakes = [time for time in (arrivals.next_s, engine.next_wake_s()) if time is not None]
        if not wakes:
            return SimulatedRun(settings, tuple(records), num_refused)
        clock.now_s = max(clock.now_s, min(wakes))


class _Arrivals:
    """Who comes when; in a closed workload a user's next request comes after the one before has ended."""

    def __init__(self, workload: Workload) -> None:
        self._requests = workload.requests
        self._think_s = workload.spec.think_s
        self._next_of = {request.after: request.index for request in workload.requests if request.after is not None}
        self._heap = [
            (request.arrival_s, request.index) for request in workload.requests if request.arrival_s is not None
        ]
        heapq.heapify(self._heap)

    @property
    def next_s(self) -> float | None:
        """When the next one comes, None when nobody is known to come."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_s: float) -> list[WorkloadRequest]:
        """Those who have come by now."""
        due = []
        while self._heap and self._heap[0][0] <= now_s:
            due.append(self._requests[heapq.heappop(self._heap)[1]])
        return due

    def ended(self, index: int, now_s: float) -> None:
        """The request of that index has ended."""
        if (following := self._next_of.get(index)) is not None:
            heapq.heappush(self._heap, (now_s + self._think_s, following))


def _request(workload: Workload, request: WorkloadRequest, now_s: float, vocabulary: Sequence[int]) -> Request:
    return Request(
        request_id=request.index + 1,
        prompt_token_ids=workload.prompt_token_ids(request, vocabulary),
        params=SamplingParams(max_tokens=workload.max_tokens(request), temperature=0.0),
        max_tokens=workload.max_tokens(request),
        seed=0,
        eos_token_ids=frozenset({_END}),
        arrival_s=now_s if request.arrival_s is None else request.arrival_s,
    )


def _next_token(workload: Workload, request: Request) -> int:
    """Token 1, 2, 3 …, and the end when the answer has the length that the workload gives it."""
    number = len(request.output_token_ids) + 1
    return _END if number >= workload.requests[request.request_id - 1].num_output_tokens else number
