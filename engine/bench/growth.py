"""What a step costs as things grow: running requests, pool, context, queue.

Scheduling alone on the simulated runner, and the whole step on the real one. The exponent is the slope of a straight
line through the points on logarithmic axes: 0 is "has no effect", 1 is linear.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.bench import common
from engine.engine import Engine
from engine.runner import Runner
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner

BLOCK_SIZE = 16
RUNNING = (1, 4, 16, 64, 256)
POOL = (64, 512, 4096, 32768, 200_000)
CONTEXT = (64, 512, 2048, 8192)
QUEUE = (1, 100, 1000, 10_000)


def steady_step_s(runner: Runner, running: int, context: int, num_blocks: int, queue: int, num_steps: int) -> float:
    """Median seconds of an engine step while `running` requests decode at about `context` tokens and `queue` wait."""
    settings = EngineSettings(
        max_num_seqs=running,
        max_num_batched_tokens=max(4096, running * context),
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=context + num_steps + 64,
        max_queue=max(1, queue),
        prefix_caching=False,
    )
    engine = Engine(runner, settings)
    length = num_steps + 16
    params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)
    for request_id in range(running + queue):
        prompt = (100 + request_id % 100,) * (context if request_id < running else 8)
        engine.add(Request(request_id, prompt, params, length, seed=0, arrival_s=engine.clock()))
    for _ in range(4):  # prefill and a first few decodes
        engine.step()
    seconds = []
    for _ in range(num_steps):
        started = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope on logarithmic axes."""
    slope, _ = statistics.linear_regression([math.log(x) for x in xs], [math.log(y) for y in ys])
    return slope


def curves(
    make_runner: Callable[[], Runner], sizes: Mapping[str, Sequence[int]], num_steps: int
) -> list[dict[str, Any]]:
    """One curve for each size that grows, the others held: 8 running, context 64, pool ample, queue empty."""
    result = []
    for name, values in sizes.items():
        points = []
        for value in values:
            what = {"running": 8, "context": 64, "queue": 0} | ({name: value} if name != "pool" else {})
            ample = (what["running"] + 1) * -(-(what["context"] + num_steps + 32) // BLOCK_SIZE)
            num_blocks = max(ample, value) if name == "pool" else ample
            step_s = steady_step_s(make_runner(), num_blocks=num_blocks, num_steps=num_steps, **what)
            points.append({"value": value, "step_s": step_s})
        slope = exponent([point["value"] for point in points], [point["step_s"] for point in points])
        result.append({"grows": name, "points": points, "exponent": slope})
    return result


def main(argv: Sequence[str]) -> None:
    """The command line."""
    parser = common.parser("growth", "What a step costs as requests, pool, context and queue grow.")
    parser.add_argument("--steps", type=int, default=100, help="steps per point; medians are shown (default: 100)")
    parser.add_argument("--real", action="store_true", help="also on the real model (minutes)")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the curves as an HTML picture")
    args = parser.parse_args(argv)
    simulated = curves(
        lambda: SimulatedRunner(SimulatedClock()),
        {"running": RUNNING, "pool": POOL, "context": CONTEXT, "queue": QUEUE},
        args.steps,
    )
    result: dict[str, Any] = common.about("growth", argv) | {"simulated": simulated}
    if args.real:
        result["real"] = _real_curves(args)
    rows = [
        [kind, curve["grows"], *_ends(curve), curve["exponent"]]
        for kind in ("simulated", "real")
        for curve in result.get(kind, [])
    ]
    columns = ("runner", "grows", "from", "to", "first step, ms", "last step, ms", "exponent")
    common.finish(result, common.table(columns, rows), args.json)
    if args.picture:
        _draw(result, args.picture)


def _real_curves(args: Any) -> list[dict[str, Any]]:
    from engine.loading import load_model, open_model

    loaded = load_model(open_model(args.model, args.device, args.dtype), args.quantization, 64, BLOCK_SIZE)
    sizes = {"running": (1, 4, 16, 64), "pool": (64, 512, 4096), "context": (64, 512, 2048), "queue": (1, 100, 1000)}
    return curves(lambda: loaded.runner, sizes, min(args.steps, 20))


def _ends(curve: dict[str, Any]) -> list[object]:
    first, last = curve["points"][0], curve["points"][-1]
    return [first["value"], last["value"], first["step_s"] * 1e3, last["step_s"] * 1e3]


def _draw(result: dict[str, Any], file: Path) -> None:
    import plotly.graph_objects as go

    figure = go.Figure()
    for kind in ("simulated", "real"):
        for curve in result.get(kind, []):
            xs = [point["value"] for point in curve["points"]]
            ys = [point["step_s"] * 1e3 for point in curve["points"]]
            figure.add_scatter(x=xs, y=ys, name=f"{kind}: {curve['grows']}", mode="lines+markers")
    figure.update_layout(title="Step cost", xaxis_title="size", yaxis_title="ms a step")
    figure.update_xaxes(type="log").update_yaxes(type="log")
    figure.write_html(file, include_plotlyjs=True)
