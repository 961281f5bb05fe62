"""Scheduling alone: the real scheduler on the simulated runner, static against continuous.

Reproduces the classic picture of why continuous batching wins: eight answers of uneven length at capacity four.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.bench import common, picture
from engine.engine import Engine
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner

DEFAULT_LENGTHS = (16, 4, 4, 4, 16, 4, 4, 4)


def simulate(policy: str, lengths: Sequence[int], capacity: int) -> dict[str, float]:
    """Run one-token prompts with answers of `lengths` tokens to their end under `policy`, `capacity` at a time.

    A step that prefills samples the first token, and counts. `utilization` is useful over scheduled slot-steps.
    """
    clock = SimulatedClock()
    num_blocks = -(-(max(lengths) + 1) // 16) * (capacity + 1)
    settings = EngineSettings(
        policy=policy,
        max_num_seqs=capacity,
        max_num_batched_tokens=max(512, capacity),
        num_blocks=num_blocks,
        max_queue=len(lengths),
        cohort_wait_s=0.0,
    )
    engine = Engine(SimulatedRunner(clock), settings, clock)
    for request_id, length in enumerate(lengths):
        params = SamplingParams(max_tokens=length, ignore_eos=True)
        engine.add(Request(request_id, (1,), params, length, seed=0, arrival_s=clock()))
    finish_steps, scheduled = [], 0
    while engine.can_work:
        record = engine.step()
        assert record is not None, "nothing ran although requests wait"
        scheduled += len(record.num_tokens) + record.num_inactive_rows
        finish_steps += [record.step] * len(engine.last_finished)
    return {
        "decode_steps": engine.num_steps,
        "useful_token_steps": sum(lengths),
        "scheduled_slot_steps": scheduled,
        "utilization": sum(lengths) / scheduled,
        "mean_finish_step": sum(finish_steps) / len(finish_steps),
        "max_finish_step": max(finish_steps),
    }


def main(argv: Sequence[str]) -> None:
    """The command line."""
    parser = common.parser("simulate", "Static against continuous batching, scheduling alone.", needs_model=False)
    parser.add_argument("--capacity", type=int, default=4, help="requests in one step (default: 4)")
    parser.add_argument("--lengths", type=int, nargs="+", default=DEFAULT_LENGTHS, help="answers' lengths in tokens")
    picture.add_option(parser)
    args = parser.parse_args(argv)
    if args.capacity < 1 or min(args.lengths) < 1:
        parser.error("--capacity and every length must be at least 1")
    result: dict[str, Any] = common.about("simulate", argv) | {"capacity": args.capacity, "lengths": list(args.lengths)}
    for name in ("static", "continuous"):
        result[name] = simulate(name, args.lengths, args.capacity)
    result["speedup"] = result["static"]["decode_steps"] / result["continuous"]["decode_steps"]
    columns = list(result["static"])
    rows = [[name, *(result[name][column] for column in columns)] for name in ("static", "continuous")]
    text = common.table(["policy", *columns], rows) + f"\n\nspeedup in steps: {result['speedup']:.3f}"
    common.finish(result, text, args.json)
    if args.picture:
        _draw(result, args.picture)


def _draw(result: dict[str, Any], file: Path) -> None:
    policies = ("static", "continuous")
    panels = [
        picture.Panel(title, unit, [""], {policy: [result[policy][key]] for policy in policies})
        for title, unit, key in (
            ("All answered after", "steps", "decode_steps"),
            ("Slots that did something useful", "share", "utilization"),
            ("An answer ends, on average, after", "steps", "mean_finish_step"),
        )
    ]
    lengths = " ".join(map(str, result["lengths"]))
    picture.bars(file, f"Answers of {lengths} tokens, {result['capacity']} at a time", panels)
