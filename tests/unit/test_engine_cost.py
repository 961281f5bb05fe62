"""A step costs what runs in it, not what the pool could hold: operations are counted, never seconds."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from engine.engine import Engine
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner


def operations(work: Callable[[], object]) -> int:
    """Lines of Python run and C functions called by `work`. (A C function that itself loops over a pool would hide: the
    largest argument of those is asked in `test_nothing_looks_at_the_whole_pool`.)"""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "c_call"

    before = sys.gettrace(), sys.getprofile()
    gc.collect()
    gc.disable()  # finalizers of what other tests left behind would be counted too
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
        gc.enable()
    return count


def busy_engine(num_blocks: int, num_requests: int = 8, **settings: Any) -> Engine:
    """Some decode, some prefill, some wait; half of them share a beginning; two have ended and left cached blocks."""
    clock = SimulatedClock()
    sizes = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 200, "block_size": 8}
    engine = Engine(SimulatedRunner(clock), EngineSettings(num_blocks=num_blocks, **(sizes | settings)), clock)
    for i in range(num_requests + 2):
        prompt = (7,) * 40 + (i,) if i % 2 else (100 + i,) * 30
        length = 2 if i < 2 else 100
        engine.add(Request(i, prompt, SamplingParams(max_tokens=length), length, 0, arrival_s=clock()))
    for _ in range(12):
        clock.advance(0.06)
        engine.step()
    return engine


@pytest.mark.parametrize("kv_layout", ["paged", "contiguous"])
@pytest.mark.parametrize("policy", ["static", "decode_first", "prefill_first", "mixed"])
def test_a_step_costs_the_same_whatever_the_pools_size(policy: str, kv_layout: str) -> None:
    counts = []
    for num_blocks in (300, 200_000):
        engine = busy_engine(num_blocks, policy=policy, kv_layout=kv_layout)
        steps = [operations(engine.step) for _ in range(20)]
        assert engine.scheduler.running
        counts.append(steps)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kv_layout", ["paged", "contiguous"])
def test_coming_and_going_costs_the_same_whatever_the_pools_size(kv_layout: str) -> None:
    counts = []
    for num_blocks in (300, 200_000):
        engine = busy_engine(num_blocks, kv_layout=kv_layout)

        def come_and_go(engine: Engine = engine) -> None:
            engine.abort(3)
            engine.add(Request(50, (9,) * 20, SamplingParams(max_tokens=3), 3, 0, arrival_s=engine.clock()))
            for _ in range(5):
                engine.step()

        counts.append(operations(come_and_go))
    assert counts[0] == counts[1]


def test_nothing_looks_at_the_whole_pool() -> None:
    """Every container that C code could walk over is far smaller than the pool, but for the pool's own two."""
    engine = busy_engine(200_000)
    pool = engine.scheduler.kv._pool  # type: ignore[attr-defined]

    class Untouchable:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __len__(self) -> int:
            return len(self.inner)

        def __contains__(self, item: object) -> bool:
            assert not isinstance(self.inner, type(pool._free)), "looking for a block in the free list walks over it"
            return item in self.inner

        def __getattr__(self, name: str) -> Any:
            assert name in ("popleft", "append", "popitem"), f"{name} may walk over all blocks"
            return getattr(self.inner, name)

        def __delitem__(self, key: int) -> None:
            del self.inner[key]

        def __setitem__(self, key: int, value: object) -> None:
            self.inner[key] = value

    pool._free, pool._cached = Untouchable(pool._free), Untouchable(pool._cached)
    for _ in range(150):
        engine.step()
    assert not engine.scheduler.running


def test_admitting_many_at_once_costs_in_proportion() -> None:
    """Twice as many requests at once, about twice the work: the policy's view is not built anew for each."""
    counts = []
    for count in (100, 200, 400):
        clock = SimulatedClock()
        settings = EngineSettings(num_blocks=2000, max_num_seqs=500, max_num_batched_tokens=10_000)
        engine = Engine(SimulatedRunner(clock), settings, clock)
        for i in range(count):
            engine.add(Request(i, (i, 2, 3), SamplingParams(max_tokens=3), 3, 0))
        counts.append(operations(engine.step))
        assert len(engine.scheduler.running) == count
    assert counts[1] < 2.1 * counts[0]
    assert counts[2] < 2.1 * counts[1]
