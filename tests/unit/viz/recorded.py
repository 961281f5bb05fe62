"""Step records of real scheduling, on simulated time: what the panels' tests are fed with."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from engine.engine import Engine
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings
from engine.simulated_runner import CostModel, SimulatedClock, SimulatedRunner
from engine.telemetry.record import StepRecord
from engine.telemetry.ring import RecordRing, Steps


class Source:
    """What the feed asks of the service, over a ring that a test fills by hand."""

    def __init__(self, capacity: int = 4096, epoch: str = "one") -> None:
        self.ring = RecordRing(epoch, capacity)
        self.settings: dict[str, Any] = {"policy": "mixed", "paused": False, "pending_prefill": [1], "queue": [1]}

    def steps(self, since: int | None = None, epoch: str | None = None, limit: int | None = None) -> Steps:
        return self.ring.since(since, epoch, limit)

    def state(self) -> Mapping[str, Any]:
        return self.settings

    def watch(self) -> None:
        """Somebody looks."""


class Traffic:
    """An engine under random, seeded traffic; `step()` gives the next record, None when all is done."""

    def __init__(self, seed: int = 0, num_requests: int = 30, **settings: Any) -> None:
        self.rng = random.Random(seed)
        self.clock = SimulatedClock()
        sizes: dict[str, Any] = {"num_blocks": 40, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 24}
        self.engine = Engine(
            SimulatedRunner(self.clock, CostModel(step_s=0.01, row_s=0.001)),
            EngineSettings(**(sizes | settings)),
            self.clock,
            check_invariants=True,
        )
        self.left = num_requests
        self.next_id = 1
        self.shared = tuple(self.rng.randrange(9) for _ in range(12))

    def add(self, prompt: tuple[int, ...] | None = None, max_tokens: int | None = None, **params: Any) -> int:
        rng = self.rng
        if prompt is None:
            own = tuple(rng.randrange(9) for _ in range(rng.randint(1, 30)))
            prompt = self.shared + own if rng.random() < 0.5 else own
        max_tokens = max_tokens or rng.randint(1, 40)
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, **params)
        request = Request(self.next_id, prompt, sampling, max_tokens, seed=0, arrival_s=self.clock())
        self.engine.add(request)
        self.next_id += 1
        return request.request_id

    def step(self) -> StepRecord | None:
        while self.left and len(self.engine.scheduler.queue) < 10 and self.rng.random() < 0.35:
            self.add()
            self.left -= 1
        if self.next_id > 2 and self.rng.random() < 0.04:
            self.engine.abort(self.rng.randrange(1, self.next_id))
        record = self.engine.step()
        while record is None and (wake := self.engine.next_wake_s()) is not None:
            self.clock.advance(max(0.0, wake - self.clock()) + 1e-6)
            record = self.engine.step()
        if record is None and self.left:
            self.add()
            self.left -= 1
            return self.step()
        return record

    def records(self) -> list[StepRecord]:
        """All that happens until everybody has ended."""
        found = []
        while (record := self.step()) is not None:
            found.append(record)
            assert len(found) < 5000
        return found
