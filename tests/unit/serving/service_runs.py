"""A service on the symbolic runner, whose steps a test lets go one by one if it likes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from engine.scheduling.plan import StepOutput, StepPlan
from engine.scheduling.sampling_params import SamplingParams
from engine.serving.service import EngineService
from engine.settings import EngineSettings
from tests.symbolic_runner import SymbolicRunner

PATIENCE_S = 20.0
"""How long a test waits for what has to happen; far more than it takes, so that a slow machine decides nothing."""


class GatedRunner(SymbolicRunner):
    """Waits before each step until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.at_gate = threading.Event()

    def run(self, plan: StepPlan) -> StepOutput:
        self.at_gate.set()
        assert self.gate.wait(PATIENCE_S)
        return super().run(plan)


def make_service(runner: SymbolicRunner | None = None, tokenizer: Any = None, **settings: Any) -> EngineService:
    """Not started."""
    return EngineService(
        runner or GatedRunner(),
        tokenizer,
        EngineSettings(**({"num_blocks": 64, "max_model_len": 512} | settings)),
        vocab_size=1000,
        check_invariants=True,
    )


@contextmanager
def running(runner: SymbolicRunner | None = None, **settings: Any) -> Iterator[EngineService]:
    """Started, and stopped again; no block may be owned at the end, and no slot was ever wrong."""
    service = make_service(runner, **settings)
    service.start()
    try:
        yield service
    finally:
        gate = getattr(service._runner, "gate", None)
        if gate is not None:
            gate.set()
        service.stop(PATIENCE_S)
    assert service.engine.scheduler.kv.num_active_blocks == 0
    assert service._runner.faults == []  # type: ignore[attr-defined]


def greedy(max_tokens: int = 8, **more: Any) -> SamplingParams:
    return SamplingParams(**({"max_tokens": max_tokens, "temperature": 0.0, "seed": 0} | more))


def until(condition: Callable[[], object]) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def num_live(service: EngineService) -> int:
    state = service.state()
    return len(state["pending_prefill"]) + len(state["pending_decode"])
