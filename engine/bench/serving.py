"""Static against continuous batching on the real model: answers of more and more uneven length, capacity four.

The wall-clock companion of `simulate`: beside each speedup stands the ideal one, the ratio of step counts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.bench import common, picture
from engine.bench.engines import random_prompts, run_to_end
from engine.bench.simulate import simulate
from engine.loading import load_model, open_model
from engine.settings import EngineSettings

WORKLOADS = {
    "uniform": (8,) * 8,
    "moderately_uneven": (12, 8, 8, 8) * 2,
    "highly_uneven": (16, 4, 4, 4) * 2,
    "extreme_uneven": (32, 4, 4, 4) * 2,
}
"""Output tokens of eight requests."""


def main(argv: Sequence[str]) -> None:
    """The command line."""
    parser = common.parser("serving", "Static against continuous batching on the real model.")
    parser.add_argument("--capacity", type=int, default=4, help="requests in one step (default: 4)")
    parser.add_argument("--prompt-tokens", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds; medians are shown (default: 7)")
    picture.add_option(parser)
    args = parser.parse_args(argv)
    if min(args.capacity, args.prompt_tokens, args.rounds) < 1:
        parser.error("--capacity, --prompt-tokens and --rounds must be at least 1")
    longest = max(n for lengths in WORKLOADS.values() for n in lengths)
    num_blocks = (args.capacity + 1) * -(-(args.prompt_tokens + longest) // 16)
    loaded = load_model(open_model(args.model, args.device, args.dtype), args.quantization, num_blocks, 16)
    prompts = random_prompts(8, args.prompt_tokens, loaded.vocab_size, args.seed)
    seconds: dict[tuple[str, str], list[float]] = {}
    for round_number in range(args.rounds + 1):  # the first round warms up
        for workload, lengths in WORKLOADS.items():
            for policy in ("static", "mixed"):
                settings = EngineSettings(
                    policy=policy,
                    max_num_seqs=args.capacity,
                    num_blocks=num_blocks,
                    prefix_caching=False,
                    cohort_wait_s=0.0,
                )
                started = time.perf_counter()
                run_to_end(loaded.runner, settings, prompts, lengths)
                if round_number:
                    seconds.setdefault((workload, policy), []).append(time.perf_counter() - started)
    rows: list[dict[str, Any]] = []
    for workload, lengths in WORKLOADS.items():
        static, continuous = (common.spread(seconds[workload, policy]) for policy in ("static", "mixed"))
        steps = {policy: simulate(policy, lengths, args.capacity)["decode_steps"] for policy in ("static", "mixed")}
        ideal = steps["static"] / steps["mixed"]
        speedup = static["median"] / continuous["median"]
        rows.append(
            {
                "workload": workload,
                "static_wall_s": static["median"],
                "continuous_wall_s": continuous["median"],
                "speedup": speedup,
                "ideal_speedup": ideal,
                "of_ideal": speedup / ideal,
                "static_spread_s": [static["min"], static["max"]],
                "continuous_spread_s": [continuous["min"], continuous["max"]],
            }
        )
    result = common.about("serving", argv) | {"model": loaded.source.name, **loaded.info, "rows": rows}
    columns = ("workload", "static_wall_s", "continuous_wall_s", "speedup", "ideal_speedup", "of_ideal")
    common.finish(result, common.table(columns, [[row[c] for c in columns] for row in rows]), args.json)
    if args.picture:
        _draw(rows, args.picture)


def _draw(rows: Sequence[dict[str, Any]], file: Path) -> None:
    names = [str(row["workload"]).replace("_", " ") for row in rows]
    policies = ("static", "continuous")
    seconds = {policy: [row[f"{policy}_wall_s"] for row in rows] for policy in policies}
    spreads = {policy: [row[f"{policy}_spread_s"] for row in rows] for policy in policies}
    speedups = {"measured": [row["speedup"] for row in rows], "ideal (steps)": [row["ideal_speedup"] for row in rows]}
    panels = [
        picture.Panel("All eight answered after", "seconds", names, seconds, spreads),
        picture.Panel("Continuous over static", "times as fast", names, speedups),
    ]
    picture.bars(file, "Static against continuous batching on the real model", panels)
