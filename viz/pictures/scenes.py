"""The runs behind the notes' pictures and numbers: small, simulated, the same on every machine.

Owns the workloads and settings. Never knows how they are drawn. Each is the real scheduler and the real memory behind
the simulated runner; a note that states a number takes it from here, and a test holds it there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from engine.engine import Engine
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.serving.simulate import SimulatedRun, simulate
from engine.serving.trace_csv import TraceRow
from engine.serving.workload import Arrivals, WorkloadSpec, generate
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner
from engine.telemetry.record import StepRecord

Records = Sequence[StepRecord]

UNEVEN = (16, 4, 4, 4, 16, 4, 4, 4)
"""The classic example: eight one-token prompts, answers of so many tokens, four slots."""

SMALL = EngineSettings(max_num_seqs=4, max_num_batched_tokens=64, num_blocks=64, cohort_wait_s=0.0)


@cache
def uneven(policy: str) -> SimulatedRun:
    """The classic example under `policy`."""
    return _run([(1, length) for length in UNEVEN], policy=policy, num_blocks=512, max_num_batched_tokens=512)


@cache
def padded() -> SimulatedRun:
    """A static batch of four prompts of 12, 3, 7 and 5 tokens, prefilled four columns a step."""
    return _run([(12, 8), (3, 3), (7, 5), (5, 2)], policy="static", max_num_batched_tokens=16)


@cache
def long_prompt(policy: str, token_budget: int = 16) -> SimulatedRun:
    """Three short requests decode when a prompt of 96 tokens comes."""
    rows = [TraceRow(0.0, 4, 26), TraceRow(0.0, 4, 26), TraceRow(0.0, 4, 26), TraceRow(0.045, 96, 8)]
    return _trace(rows, policy=policy, max_num_batched_tokens=token_budget)


@cache
def trade(policy: str) -> SimulatedRun:
    """Eight requests that come one after the other, half of them with prompts of some length, two slots."""
    rows = [TraceRow(0.03 * i, 24 if i % 2 else 6, 8) for i in range(8)]
    return _trace(rows, policy=policy, max_num_seqs=2, max_num_batched_tokens=24)


@cache
def asked_for_much(kv_layout: str) -> SimulatedRun:
    """Ten people ask for up to four times the tokens that their answers turn out to have; 48 blocks."""
    lengths = [(20 + 7 * i % 30, 12 + 5 * i % 16) for i in range(10)]
    spec = WorkloadSpec(
        num_requests=len(lengths), arrivals=Arrivals.AT_ONCE, lengths=tuple(lengths), asked_tokens_factor=6.0
    )
    settings = replace(SMALL, kv_layout=kv_layout, max_num_seqs=8, num_blocks=48, block_size=8)
    return simulate(generate(spec), settings)


@cache
def holes() -> SimulatedRun:
    """Contiguous: short requests have left holes; there are free blocks enough for the last one, but no run."""
    rows = [TraceRow(0.0, 16, output) for output in (40, 4, 40, 4, 40)] + [TraceRow(0.07, 24, 8)]
    return _trace(rows, kv_layout="contiguous", num_blocks=27, block_size=8, max_num_seqs=8, max_num_batched_tokens=96)


@cache
def shared(prefix_caching: bool = True) -> SimulatedRun:
    """Four requests whose prompts begin with the same 24 tokens, the first a little before the others."""
    engine = _engine(prefix_caching=prefix_caching, block_size=8, num_blocks=18)
    beginning = tuple(range(1000, 1024))
    own = [tuple(range(2000 + 100 * i, 2005 + 100 * i + 2 * i)) for i in range(4)]
    return _drive(engine, [(0.05 if i else 0.0, (*beginning, *own[i]), 8) for i in range(4)])


@cache
def forked() -> SimulatedRun:
    """One prompt of 20 tokens, three answers (n = 3): the partly filled block is copied when it is written."""
    engine = _engine(block_size=8, num_blocks=16)
    for i in range(3):
        params = SamplingParams(max_tokens=6)
        engine.add(Request(1 + i, tuple(range(20)), params, 6, seed=i, sibling_of=1 if i else None))
    return SimulatedRun(engine.settings, tuple(_to_the_end(engine)))


@cache
def tight() -> SimulatedRun:
    """Four prompts that fit the pool together, and answers that do not."""
    return _run([(12, 20), (12, 20), (12, 20), (12, 20)], num_blocks=12, block_size=8)


@cache
def alone(num_prompt_tokens: int = 32, num_output_tokens: int = 64) -> SimulatedRun:
    """One request, for the rows that its steps compute."""
    return _run([(num_prompt_tokens, num_output_tokens)])


def _run(lengths: Sequence[tuple[int, int]], **settings: Any) -> SimulatedRun:
    spec = WorkloadSpec(num_requests=len(lengths), arrivals=Arrivals.AT_ONCE, lengths=tuple(lengths))
    return simulate(generate(spec), replace(SMALL, **settings))


def _trace(rows: Sequence[TraceRow], **settings: Any) -> SimulatedRun:
    spec = WorkloadSpec(num_requests=len(rows), arrivals=Arrivals.TRACE, trace=tuple(rows))
    return simulate(generate(spec), replace(SMALL, **settings))


def _engine(**settings: Any) -> Engine:
    clock = SimulatedClock()
    return Engine(SimulatedRunner(clock), replace(SMALL, **settings), clock)


def _drive(engine: Engine, arrivals: Sequence[tuple[float, tuple[int, ...], int]]) -> SimulatedRun:
    """Run requests (arrival, prompt, answer's length) to their end."""
    waiting = list(enumerate(arrivals, start=1))
    records: list[StepRecord] = []
    clock = engine.clock
    assert isinstance(clock, SimulatedClock)
    while waiting or engine.can_work:
        while waiting and waiting[0][1][0] <= clock.now_s:
            number, (arrival_s, prompt, length) = waiting.pop(0)
            params = SamplingParams(max_tokens=length)
            engine.add(Request(number, prompt, params, length, seed=0, arrival_s=arrival_s))
        record = engine.step()
        if record is not None:
            records.append(record)
        else:
            clock.now_s = waiting[0][1][0]
    return SimulatedRun(engine.settings, tuple(records))


def _to_the_end(engine: Engine) -> list[StepRecord]:
    records = []
    while engine.can_work:
        record = engine.step()
        assert record is not None, "nothing ran although requests wait"
        records.append(record)
    return records
