"""Where the time of one decode step goes: torch's profiler over the whole engine, operators put in groups.

    python -m engine.bench profile --batch 1 8 --json FILE --picture FILE

Owns the groups and what falls between the operators. What it shows is the step as the profiler sees it, which is slower
than the step alone; both times are told.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from engine.bench import common
from engine.bench.engines import random_prompts
from engine.engine import Engine
from engine.kv.paged_attention import PagedAttention
from engine.loading import LoadedModel, load_model, open_model
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings

PROMPT_TOKENS, NEW_TOKENS, NUM_STEPS = 64, 64, 20

STEP, RUN, FORWARD, BATCH = "step", "run", "forward", "batch"
ATTENTION, HEAD, SAMPLING = "attention", "head", "sampling"

GROUPS = (
    "linears",
    "attention",
    "writing keys and values",
    "norms",
    "rotary",
    "gate",
    "residual",
    "head",
    "sampling",
    "other operators",
    "Python of the forward pass",
    "building the batch",
    "engine",
)
"""In the order of the table. The last three are what passes between operators; "engine" is schedule, commit, record."""

_OPERATORS = {
    "linears": (
        "_linear_pointwise",
        "linear_dynamic_fp16",
        "_weight_int4pack_mm_for_cpu",
        "aten::linear",
        "aten::mm",
        "aten::addmm",
        "aten::constant_pad_nd",
    ),
    "norms": ("layer_norm", "rms_norm", "aten::cat", "aten::contiguous", "aten::clone", "aten::slice"),
    "rotary": ("aten::roll", "aten::mul", "aten::addcmul"),
    "gate": ("aten::silu", "aten::mul_", "silu_mul"),
    "residual": ("aten::add",),
}
"""Of the forward pass outside attention: an operator belongs where its name ends with, or holds, one of these."""
_WRITES = ("aten::index_copy_", "aten::index_put_", "aten::scatter_")


def main(argv: Sequence[str]) -> None:
    """The command line."""
    parser = common.parser("profile", "Where the time of one decode step goes, on the CPU.")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], metavar="B")
    parser.add_argument("--operators", type=int, default=0, metavar="N", help="also list the N costliest operators")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write the bars as an HTML picture")
    args = parser.parse_args(argv)
    if min(args.batch) < 1:
        parser.error("--batch must be at least 1")
    loaded = load_model(open_model(args.model, "cpu", args.dtype), args.quantization, 1, 16)
    result: dict[str, Any] = common.about("profile", argv) | {
        "model": loaded.source.name,
        **loaded.info,
        "batches": {str(batch): profiled(loaded, batch, args.seed) for batch in args.batch},
    }
    common.finish(result, _table(result, args.operators), args.json)
    if args.picture:
        _draw(result, args.picture)


def profiled(loaded: LoadedModel, batch: int, seed: int) -> dict[str, Any]:
    """A step in which `batch` requests decode: `step_ms` alone, `profiled_ms`, `groups` (ms), `operators` by cost."""
    engine = _decoding(loaded, batch, seed)
    alone = []
    for _ in range(NUM_STEPS):
        began = time.perf_counter()
        engine.step()
        alone.append(time.perf_counter() - began)
    with _ranges(engine), profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(NUM_STEPS):
            with record_function(STEP):
                engine.step()
    groups, operators = _sorted_out(profiler.events())
    per_step = 1e-3 / NUM_STEPS  # microseconds of all steps -> milliseconds of one
    return {
        "step_ms": 1e3 * statistics.median(alone),
        "profiled_ms": sum(groups.values()) * per_step,
        "groups": {name: groups[name] * per_step for name in GROUPS if groups[name]},
        "num_operators": sum(count for _, _, count, _ in operators) / NUM_STEPS,
        "operators": [
            {"group": group, "name": name, "calls": count / NUM_STEPS, "ms": us * per_step}
            for group, name, count, us in operators
        ],
    }


def _decoding(loaded: LoadedModel, batch: int, seed: int) -> Engine:
    """An engine in which `batch` requests decode, and will for long enough."""
    num_blocks = batch * -(-(PROMPT_TOKENS + NEW_TOKENS) // 16)
    settings = EngineSettings(
        max_num_seqs=batch, max_num_batched_tokens=batch * PROMPT_TOKENS, num_blocks=num_blocks, max_queue=batch
    )
    engine = Engine(loaded.runner, settings)
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    for i, prompt in enumerate(random_prompts(batch, PROMPT_TOKENS, loaded.vocab_size, seed)):
        engine.add(Request(i, tuple(prompt), params, NEW_TOKENS, seed=0))
    for _ in range(8):
        engine.step()
    return engine


@contextmanager
def _ranges(engine: Engine) -> Iterator[None]:
    """Name the parts of a step to the profiler: those that whole methods are."""
    runner: Any = engine.runner
    forms = [runner.model, *([runner.answer_form] if runner.answer_form is not None else [])]
    methods: list[tuple[Any, str, str]] = [
        (runner, "run", RUN),
        (runner, "passes", BATCH),
        (runner, "_logits", FORWARD),
        (runner, "_sample", SAMPLING),
        (PagedAttention, "__call__", ATTENTION),
        *((model, "logits", HEAD) for model in forms),
    ]
    for owner, method, name in methods:
        setattr(owner, method, _named(getattr(owner, method), name))
    try:
        yield
    finally:
        for owner, method, _ in methods:
            inner = getattr(owner, method).__wrapped__
            setattr(owner, method, inner) if isinstance(owner, type) else delattr(owner, method)


def _named(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    @wraps(call)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return call(*args, **kwargs)

    return inside


def _sorted_out(events: Sequence[FunctionEvent]) -> tuple[Counter[str], list[tuple[str, str, int, int]]]:
    """Microseconds by group, and of each operator (group, name, calls, microseconds), costliest first."""
    names = {STEP, RUN, FORWARD, BATCH, ATTENTION, HEAD, SAMPLING}
    groups: Counter[str] = Counter()
    calls: Counter[tuple[str, str]] = Counter()
    costs: Counter[tuple[str, str]] = Counter()
    own: Counter[str] = Counter()  # of each range: its time outside of what is inside
    for event in events:
        parent = event.cpu_parent
        us = round(event.time_range.elapsed_us())
        if event.name in names:
            own[event.name] += us
            if parent is not None:
                own[parent.name] -= us
        elif parent is not None and parent.name in names:  # an operator that Python called
            own[parent.name] -= us
            group = _group(parent.name, event.name)
            groups[group] += us
            calls[group, event.name] += 1
            costs[group, event.name] += us
    groups["Python of the forward pass"] += own[FORWARD] + own[ATTENTION]
    groups["head"] += own[HEAD]
    groups["sampling"] += own[SAMPLING]
    groups["building the batch"] += own[BATCH] + own[RUN]
    groups["engine"] += own[STEP]
    listed = [(group, name, calls[group, name], us) for (group, name), us in costs.most_common()]
    return groups, listed


def _group(inside: str, operator: str) -> str:
    """Where an operator belongs, by the part of the step that called it and by its name."""
    if inside == ATTENTION:
        return "writing keys and values" if operator in _WRITES else "attention"
    if inside == FORWARD:
        for group, names in _OPERATORS.items():
            if any(operator == name or (":" not in name and name in operator) for name in names):
                return group
        return "other operators"
    return {HEAD: "head", SAMPLING: "sampling", STEP: "engine"}.get(inside, "building the batch")


def _table(result: dict[str, Any], num_operators: int) -> str:
    batches = result["batches"]
    rows: list[list[object]] = []
    for name in GROUPS:
        cells: list[object] = [name]
        for one in batches.values():
            ms = one["groups"].get(name, 0.0)
            cells += [ms, f"{ms / one['profiled_ms']:.0%}"]
        rows.append(cells)
    rows.append(["a step, profiled", *(cell for one in batches.values() for cell in (one["profiled_ms"], ""))])
    rows.append(["a step, alone", *(cell for one in batches.values() for cell in (one["step_ms"], ""))])
    columns = ["", *(words for batch in batches for words in (f"batch {batch}, ms", "share"))]
    text = f"{result['model']}, {result['dtype']}, quantization {result['quantization']}, {result['device']}\n\n"
    text += common.table(columns, rows)
    for batch, one in batches.items():
        text += f"\n\nbatch {batch}: {one['num_operators']:.0f} operators a step"
        if num_operators:
            listed = [[o["group"], o["name"], o["calls"], o["ms"]] for o in one["operators"][:num_operators]]
            text += "\n" + common.table(("group", "operator", "calls a step", "ms a step"), listed)
    return text


def _draw(result: dict[str, Any], file: Path) -> None:
    import plotly.graph_objects as go

    figure = go.Figure()
    names = [f"batch {batch}" for batch in result["batches"]]
    for group in GROUPS:
        values = [one["groups"].get(group, 0.0) for one in result["batches"].values()]
        figure.add_bar(y=names, x=values, name=group, orientation="h")
    figure.update_layout(barmode="stack", template="plotly_white", title="One decode step", xaxis_title="ms")
    figure.write_html(file, include_plotlyjs=True)
