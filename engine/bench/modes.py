"""The five inference modes on one model: what a KV cache, a batch, and continuous batching each bring.

All five compute with the same readable forward pass (`engine.model.llama`), so that only the mode differs, and all
five must give the same tokens in float32.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.bench import common, picture
from engine.bench.engines import random_prompts, run_to_end
from engine.loading import open_model
from engine.model import checkpoint, generate
from engine.settings import EngineSettings
from engine.torch_runner import TorchRunner

Mode = Callable[[int], list[list[int]]]
"""Number of new tokens → the answers."""


def main(argv: Sequence[str]) -> None:
    """The command line."""
    parser = common.parser("modes", "The five inference modes: with and without cache, alone, batched, continuous.")
    parser.add_argument("--batch", type=int, default=4, help="prompts (default: 4)")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; medians are shown (default: 3)")
    picture.add_option(parser)
    args = parser.parse_args(argv)
    if min(args.batch, args.prompt_tokens, args.rounds) < 1 or args.new_tokens < 2:
        parser.error("--batch, --prompt-tokens and --rounds must be at least 1, --new-tokens at least 2")
    opened = open_model(args.model, args.device, args.dtype)
    model, config = checkpoint.load(opened.source.path, opened.dtype, opened.device)
    prompts = random_prompts(args.batch, args.prompt_tokens, config.vocab_size, args.seed)
    settings = EngineSettings(
        max_num_seqs=args.batch,
        max_num_batched_tokens=args.batch * args.prompt_tokens,
        num_blocks=args.batch * -(-(args.prompt_tokens + args.new_tokens) // 16) + 1,
        prefix_caching=False,
    )
    runner = TorchRunner(model, settings.num_blocks, settings.block_size, opened.dtype, opened.device)
    modes: dict[str, Mode] = {
        "singleton_no_kv": lambda n: generate.singleton_no_kv(model, prompts, n).token_ids,
        "singleton_kv": lambda n: generate.singleton_kv(model, prompts, n).token_ids,
        "static_batch_no_kv": lambda n: generate.static_batch_no_kv(model, prompts, n).token_ids,
        "static_batch_kv": lambda n: generate.static_batch_kv(model, prompts, n).token_ids,
        "continuous_batch_kv": lambda n: run_to_end(runner, settings, prompts, [n] * len(prompts))[0],
    }
    whole, prefill = _measure(modes, args.new_tokens, args.rounds)
    result = common.about("modes", argv) | {
        "model": opened.source.name,
        "dtype": str(opened.dtype).removeprefix("torch."),
        "batch": args.batch,
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
        "rows": _rows(whole, prefill, args.batch, args.new_tokens),
    }
    columns = ("scenario", "wall_s", "min_s", "max_s", "new_tok_s", "speedup")
    text = common.table(columns, [[row[column] for column in columns] for row in result["rows"]])
    common.finish(result, text, args.json)
    if args.picture:
        _draw(result, args.picture)


def _draw(result: dict[str, Any], file: Path) -> None:
    panels = []
    for title, is_part in (("Prompt and answer", False), ("Prefill alone, decode alone", True)):
        rows = [row for row in result["rows"] if ("_only_" in row["scenario"]) == is_part]
        names = [row["scenario"].replace("_", " ") for row in rows]
        spreads = {"seconds": [(row["min_s"], row["max_s"]) for row in rows]}
        seconds = {"seconds": [row["wall_s"] for row in rows]}
        panels.append(picture.Panel(title, "seconds", names, seconds, spreads))
    what = f"{result['batch']} prompts of {result['prompt_tokens']} tokens, {result['new_tokens']} new tokens each"
    picture.bars(file, f"The five inference modes: {what}", panels)


def _measure(
    modes: dict[str, Mode], num_new_tokens: int, num_rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds of each mode in each round, for all new tokens and for the first one alone (prefill)."""
    whole: dict[str, list[float]] = {name: [] for name in modes}
    prefill: dict[str, list[float]] = {name: [] for name in modes}
    for round_number in range(num_rounds + 1):  # the first round warms up
        for name, mode in modes.items():
            for times, n in ((prefill, 1), (whole, num_new_tokens)):
                started = time.perf_counter()
                mode(n)
                if round_number:
                    times[name].append(time.perf_counter() - started)
    return whole, prefill


def _rows(
    whole: dict[str, list[float]], prefill: dict[str, list[float]], batch: int, num_new_tokens: int
) -> list[dict[str, object]]:
    """One row a mode, then prefill alone and decode alone (the difference) for the modes with a cache."""
    parts = {name: (times, batch * num_new_tokens) for name, times in whole.items()}
    for name, times in prefill.items():
        if name.endswith("_kv") and not name.endswith("_no_kv"):
            parts[f"prefill_only_{name}"] = (times, batch)
            rest = [w - p for w, p in zip(whole[name], times, strict=True)]
            parts[f"decode_only_{name}"] = (rest, batch * (num_new_tokens - 1))
    rows = []
    for scenario, (times, tokens) in parts.items():
        base = scenario.split("_only_")[0] + "_only_singleton_kv" if "_only_" in scenario else "singleton_no_kv"
        seconds = common.spread(times)
        rows.append(
            {
                "scenario": scenario,
                "wall_s": seconds["median"],
                "min_s": seconds["min"],
                "max_s": seconds["max"],
                "new_tok_s": tokens / seconds["median"],
                "speedup": common.spread(parts[base][0])["median"] / seconds["median"],
            }
        )
    return rows
