"""Runs of the real engine on the simulated runner, with everything that can happen to it, for tests of traces."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

from engine.engine import Engine
from engine.scheduling.plan import StepOutput, StepPlan
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.settings import POLICIES, EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner
from engine.telemetry.record import StepRecord
from engine.telemetry.trace_format import Header, header_line, step_line

EOS = 3


class MoodyRunner(SimulatedRunner):
    """Few different tokens, so that answers are alike; now and then it fails, for one request or for all."""

    def __init__(self, clock: SimulatedClock, rng: random.Random, fails: bool) -> None:
        super().__init__(clock, next_token=lambda _: EOS if rng.random() < 0.02 else rng.randrange(3))
        self.rng = rng
        self.fails = fails

    def run(self, plan: StepPlan) -> StepOutput:
        output = super().run(plan)
        if self.fails and self.rng.random() < 0.01:
            raise RuntimeError("a bad day")
        errors = {}
        if self.fails and self.rng.random() < 0.02:
            errors = {self.rng.choice(plan.scheduled).request_id: "its logits are not finite"}
        return StepOutput(output.sampled, errors, forward_s=output.forward_s)

    def reset_pool(self, num_blocks: int, block_size: int) -> None:
        if self.fails and num_blocks == 61:
            raise MemoryError("61 blocks do not fit")


def random_settings(rng: random.Random) -> EngineSettings:
    return EngineSettings(
        policy=rng.choice(POLICIES),
        kv_layout=rng.choice(["paged", "contiguous"]),
        block_size=rng.choice([1, 4, 16]),
        num_blocks=rng.choice([10, 16, 24, 60]),
        max_num_seqs=rng.choice([1, 2, 4, 8]),
        max_num_batched_tokens=rng.choice([8, 16, 64]),
        prefix_caching=rng.random() < 0.7,
        decode_selection=rng.choice(["sticky", "round_robin"]),
    )


def random_change(rng: random.Random) -> dict[str, object]:
    return rng.choice(
        [
            {"policy": rng.choice(POLICIES)},
            {"kv_layout": rng.choice(["paged", "contiguous"])},
            {"prefix_caching": rng.random() < 0.5},
            {"decode_selection": rng.choice(["sticky", "round_robin"])},
            {"block_size": rng.choice([1, 4, 16]), "num_blocks": rng.choice([24, 60, 61])},
            {"max_num_seqs": rng.choice([1, 2, 4, 8])},
            {"prefill_threshold": rng.choice([1, 3])},
        ]
    )


SHARING = EngineSettings(block_size=4, num_blocks=60, max_num_seqs=4, max_num_batched_tokens=64)


def run(
    seed: int, num_requests: int = 40, fails: bool = True, settings: EngineSettings | None = None
) -> tuple[Engine, list[StepRecord]]:
    """A run in which requests come, share beginnings, are aborted, preempted, paused, and settings change."""
    rng = random.Random(seed)
    clock = SimulatedClock(1000.0 + rng.random() * 1e5)
    engine = Engine(MoodyRunner(clock, rng, fails), settings or random_settings(rng), clock, check_invariants=True)
    beginnings = [tuple(rng.randrange(4) for _ in range(40)) for _ in range(3)]
    records: list[StepRecord] = []
    count = 0
    for _ in range(20_000):
        if count < num_requests and rng.random() < 0.15:
            prompt = rng.choice(beginnings)[: rng.randint(1, 40)] + tuple(
                rng.randrange(4) for _ in range(rng.randint(0, 20))
            )
            limit = (engine.pending_settings or engine.settings).context_limit
            count += _arrive(engine, count, prompt[: min(limit, engine.settings.context_limit) - 1], rng, clock())
        if rng.random() < 0.02 and count:
            engine.abort(rng.randrange(count))
        if rng.random() < 0.02:
            with contextlib.suppress(InvalidRequest):  # a pool that does not fit
                engine.change(random_change(rng))
        record = engine.record_news() if rng.random() < 0.05 else engine.step()
        if record is not None:
            records.append(record)
        else:
            clock.advance(rng.random() * 0.06)
            if count >= num_requests and not engine.can_work:
                return engine, records
    raise AssertionError(f"seed {seed} does not come to an end")


def _arrive(engine: Engine, first_id: int, prompt: tuple[int, ...], rng: random.Random, now_s: float) -> int:
    num_answers = rng.choice([1, 1, 1, 3])
    for i in range(num_answers):
        max_tokens = rng.randint(1, 30)
        engine.add(
            Request(
                request_id=first_id + i,
                prompt_token_ids=prompt,
                params=SamplingParams(max_tokens=max_tokens),
                max_tokens=max_tokens,
                seed=0,
                eos_token_ids=frozenset({EOS}),
                sibling_of=first_id if i else None,
                arrival_s=now_s,
            )
        )
    return num_answers


def trace_text(engine: Engine, records: list[StepRecord]) -> str:
    """The trace of a whole run."""
    journal = engine.journal
    entries = {entry.step: entry for entry in journal.entries(0, 1 << 60)}
    lines = [header_line(Header("e" * 16, journal.start_s, journal.settings, {"model": "simulated"}))]
    lines += [step_line(record, entries[record.step]) for record in records]
    return "\n".join(lines) + "\n"


def save(path: Path, seed: int, **options: object) -> Path:
    """Run, and write the trace to `path`."""
    path.write_text(trace_text(*run(seed, **options)))  # type: ignore[arg-type]
    return path
