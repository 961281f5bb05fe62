"""Everything that needs a card, in one go: right answers first, then speed beside transformers and the card's limits.

Imports torch, transformers and safetensors alone; weights are random, nothing is downloaded. Ends within `--budget`
seconds: what there is no time left for is named as left out. Without a card it rehearses itself on a small shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from engine.bench import common, gpu_parity, gpu_speed
from engine.bench.gpu_model import SHAPES, our_runner, reference_model
from engine.kv.device_attention import CANDIDATES


class Report:
    """What was measured, what failed, and what there was no time for."""

    def __init__(self, about: dict[str, Any], budget_s: float, json_file: Path | None) -> None:
        """`json_file` is written after every part: whoever ends the run early still has what was measured."""
        self.result: dict[str, Any] = about | {"failed": [], "left_out": [], "seconds": {}}
        self._ends, self._json_file = time.monotonic() + budget_s, json_file

    def run(self, name: str, measure: Callable[[], Any]) -> Any:
        """One part: what it answers, or None if it failed or came too late."""
        if time.monotonic() > self._ends:
            self.result["left_out"].append(name)
            return None
        began = time.monotonic()
        try:
            return measure()
        except Exception as error:  # the next part may still tell something
            self.fail(name, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            return None
        finally:
            self.result["seconds"][name] = round(time.monotonic() - began, 2)
            if self._json_file is not None:
                common.write(self.result, self._json_file)

    def fail(self, name: str, words: str) -> None:
        """Note a failure, and say it at once."""
        self.result["failed"].append({"check": name, "what": words})
        common.warn(f"FAILED {name}: {words}")


def main(argv: Sequence[str]) -> int:
    """The command line. Exit code 1 when a check failed."""
    parser = common.parser("gpu-check", "All that needs a CUDA card, on random weights.", needs_model=False)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shape", choices=tuple(SHAPES), help="default: llama-3.2-1b on a card, small elsewhere")
    parser.add_argument(
        "--batch", type=int, nargs="+", metavar="B", help="default: 1 8 64 256 on a card, 1 4 elsewhere"
    )
    parser.add_argument("--budget", type=float, default=420, help="seconds after which parts are left out (420)")
    args = parser.parse_args(argv)
    is_card = args.device == "cuda"
    shape = args.shape or ("llama-3.2-1b" if is_card else "small")
    batches = args.batch or ([1, 8, 64, 256] if is_card else [1, 4])
    dtype = torch.float16 if is_card and not torch.cuda.is_bf16_supported(including_emulation=False) else torch.bfloat16
    about = common.about("gpu-check", argv) | {
        "device": torch.cuda.get_device_name() if is_card else "CPU, a rehearsal",
        "shape": shape,
        "dtype": str(dtype).removeprefix("torch."),
    }
    report = Report(about, args.budget, args.json)
    checks = report.run("model for parity", lambda: list(gpu_parity.checks(args.device, dtype, args.seed)))
    for name, check in checks or ():
        words = report.run(name, check)
        if words:
            report.fail(name, words)
    _speed(report, shape, args.device, dtype, batches, args.seed)
    common.finish(report.result, _table(report.result), args.json)
    return 1 if report.result["failed"] else 0


def _speed(report: Report, shape: str, device: str, dtype: torch.dtype, batches: Sequence[int], seed: int) -> None:
    """Fill the report: roofline, our engine, transformers, all on the same weights."""
    is_small = shape == "small"
    result, most = report.result, 64 if max(batches) >= 64 else max(batches)
    new_tokens = 8 if is_small else gpu_speed.NEW_TOKENS
    result["roofline"] = report.run("roofline", lambda: gpu_speed.roofline(device, dtype, is_small))
    model = report.run("random weights", lambda: reference_model(shape, device, dtype, seed))
    runner = report.run("our model", lambda: our_runner(model, device, dtype)) if model is not None else None
    if model is None or runner is None:
        return
    prompts = gpu_speed.mixed_prompts(most * (1 if is_small else 3), model.config.vocab_size, seed)
    num_prompts = 2 if is_small else 8
    new = 16 + new_tokens
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    result["decode"] = {
        str(b): report.run(f"decode, batch {b}", partial(gpu_speed.decode, runner, b, seed, new)) for b in batches
    }
    result["prefill_tok_s"] = report.run("prefill", lambda: gpu_speed.prefill(runner, seed, num_prompts))
    result["mixed_tok_s"] = report.run("mixed", lambda: gpu_speed.serve(runner, prompts, new_tokens, most))
    if device == "cuda":
        result["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    graphs = runner.graphs
    if device == "cuda" and (graphs is None or graphs.is_broken):
        report.fail("CUDA graphs", "they were not used; the log says why")
    report.run("pool given back", lambda: runner.reset_pool(1, 16))
    result["transformers"] = {
        "continuous_tok_s": report.run(
            "transformers continuous", partial(gpu_speed.peer_continuous, model, device, prompts, new_tokens)
        ),
        "static": {
            str(b): report.run(
                f"transformers static, batch {b}",
                partial(gpu_speed.peer_static, model, device, b, new_tokens, seed),
            )
            for b in batches
        },
    }
    result["routes"] = {
        f"{route}, blocks of {size}": report.run(
            f"decode by {route}, blocks of {size}",
            partial(gpu_speed.decode_by_route, runner, route, size, batches, seed, new),
        )
        for route, size in CANDIDATES
    }


def _table(result: dict[str, Any]) -> str:
    """Speed beside the limits, then where a step's time goes, then what failed."""
    limits = result.get("roofline")
    lines, parts = [], []
    static = result.get("transformers", {}).get("static", {})
    for batch, ours in (result.get("decode") or {}).items():
        if ours is None:
            continue
        floor_s = ours["step_bytes"] / limits["copy_bytes_s"] if limits else float("nan")
        peer = (static.get(batch) or {}).get("tok_s", float("nan"))
        row = (f"decode, batch {batch}", ours["tok_s"], f"{floor_s / ours['step_s']:.0%}", peer, ours["tok_s"] / peer)
        lines.append(row)
        in_ms = [f"{1e3 * value:.3f}" for value in ours["parts_s"].values()]
        around = ours["step_s"] - ours["parts_s"]["forward_s"] - ours["parts_s"]["sample_s"]
        parts.append((f"batch {batch}", f"{1e3 * ours['step_s']:.3f}", *in_ms, f"{around / ours['step_s']:.0%}"))
    for name, mine, peer in (
        ("mixed workload", "mixed_tok_s", result.get("transformers", {}).get("continuous_tok_s")),
        ("prefill", "prefill_tok_s", max(((p or {}).get("prompt_tok_s", 0) for p in static.values()), default=0)),
    ):
        if result.get(mine):
            lines.append((name, result[mine], "", peer or float("nan"), result[mine] / (peer or float("nan"))))
    text = common.table(("", "tokens/s", "of memory roofline", "transformers", "ratio"), lines)
    text += "\n\n" + common.table(
        ("ms a step", "all", "schedule", "batch", "forward", "sample", "commit", "around the model"), parts
    )
    text += "\n\n" + _routes(result)
    if limits:
        text += f"\n\nCopy {limits['copy_bytes_s'] / 1e9:.0f} GB/s (read and written), "
        text += f"matrix products {limits['matrix_flop_s'] / 1e12:.2f} TFLOP/s"
    if result["left_out"]:
        text += f"\nNo time left for: {', '.join(result['left_out'])}"
    first = result["failed"][0] if result["failed"] else None
    return text + (f"\nFirst failing check: {first['check']}: {first['what']}" if first else "\nAll checks passed.")


def _routes(result: dict[str, Any]) -> str:
    """Decode tokens/s by each way to read block tables, the fastest at each batch size, and why others are missing."""
    gathered = {batch: one["tok_s"] for batch, one in (result.get("decode") or {}).items() if one}
    found = {"gather, blocks of 16": gathered} | (result.get("routes") or {})
    measured = {name: speeds for name, speeds in found.items() if isinstance(speeds, dict)}
    rows = []
    for batch in gathered:
        speeds = {name: one.get(batch, 0.0) for name, one in measured.items()}
        rows.append((f"batch {batch}", *speeds.values(), max(speeds, key=lambda name: speeds[name])))
    text = common.table(("decode tokens/s", *measured, "fastest"), rows)
    return text + "".join(f"\n{name}: {why}" for name, why in found.items() if isinstance(why, str))
