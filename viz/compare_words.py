"""Two runs of one workload in words and in a table: which was better, by how much, and why.

Owns the choice and the wording of these sentences. Never knows where the figures come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.telemetry.figures import RunFigures, Targets
from viz.words import seconds

NOTEWORTHY = 0.05
"""Differences smaller than this are not called differences."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs: what sets it apart in words (no letter: letters are requests), and its figures."""

    name: str
    figures: RunFigures


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    help: str
    show: Callable[[float], str]
    less_is_better: bool | None


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _rate(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _two(value: float) -> str:
    return f"{value:.2f}"


ROWS: dict[str, _Row] = {
    "makespan_s": _Row("Time until all had ended", "makespan", seconds, True),
    "num_steps": _Row("Steps", "passes through the model", _count, True),
    "output_tokens_per_s": _Row("Tokens a second", "output tokens ÷ makespan", _rate, False),
    "utilization": _Row("Useful rows", "rows that were tokens, of all rows computed", _share, False),
    "wasted_slot_steps": _Row("Wasted slot-steps", "rows of ended slots and of padding", _count, True),
    "padding_rows": _Row("… of them padding", "prompts padded to the longest of the batch", _count, True),
    "most_at_once": _Row("Most requests in one step", "", _count, None),
    "mean_finish_step": _Row("Mean finish step", "in which step a request ended, on average", _two, True),
    "ttft_p50_s": _Row("TTFT, median", "arrival to first token, waiting included", seconds, True),
    "ttft_p95_s": _Row("TTFT, 95th percentile", "", seconds, True),
    "itl_p50_s": _Row("Time between tokens, median", "ITL", seconds, True),
    "itl_p95_s": _Row("Time between tokens, 95th percentile", "", seconds, True),
    "itl_max_s": _Row("Longest gap in an answer", "", seconds, True),
    "queue_p50_s": _Row("Waiting in the queue, median", "", seconds, True),
    "goodput_per_s": _Row(
        "Goodput", "requests a second with TTFT ≤ {ttft} and ITL ≤ {itl} (95th percentile of each)", _two, False
    ),
    "peak_memory": _Row("Peak memory", "blocks owned, of the pool", _share, True),
    "internal_fragmentation": _Row("Reserved but unused", "internal fragmentation, mean over time", _share, True),
    "external_fragmentation": _Row("External fragmentation", "free, but not in one run; mean over time", _share, True),
    "num_preemptions": _Row("Preemptions", "", _count, True),
    "prefix_hit_rate": _Row("Prefix hits", "prompt tokens found in the cache", _share, False),
}


def table(a: Side, b: Side, targets: Targets) -> list[dict[str, Any]]:
    """One row a figure: name, help, the two values in words, b ÷ a, and which side is better ("a", "b" or None).

    Goodput stands there with the targets it is measured by, and only where somebody met them."""
    rows = []
    for key, row in ROWS.items():
        left, right = getattr(a.figures, key), getattr(b.figures, key)
        if key == "goodput_per_s" and not left and not right:
            continue
        rows.append(
            {
                "key": key,
                "name": row.name,
                "help": row.help.format(ttft=seconds(targets.ttft_s), itl=seconds(targets.itl_s)),
                "a": "–" if left is None else row.show(left),
                "b": "–" if right is None else row.show(right),
                "ratio": f"{right / left:.2f} ×" if left and right is not None else "–",
                "better": _better(left, right, row.less_is_better),
            }
        )
    return rows


def _better(left: float | None, right: float | None, less_is_better: bool | None) -> str | None:
    if left is None or right is None or less_is_better is None or not _differ(left, right):
        return None
    return "a" if (left < right) == less_is_better else "b"


def _differ(left: float, right: float) -> bool:
    return abs(left - right) > NOTEWORTHY * max(abs(left), abs(right))


def _first(side: Side) -> str:
    """The name of a side as a sentence begins with it."""
    return side.name[0].upper() + side.name[1:]


def headline(a: Side, b: Side) -> str:
    """The result in one sentence."""
    fast, slow = (a, b) if a.figures.makespan_s <= b.figures.makespan_s else (b, a)
    ratio = slow.figures.makespan_s / fast.figures.makespan_s
    times = f"{seconds(fast.figures.makespan_s)} against {seconds(slow.figures.makespan_s)}"
    steps = f"{fast.figures.num_steps:,} steps against {slow.figures.num_steps:,}"
    if ratio < 1 + NOTEWORTHY:
        but = _first_difference(a, b)
        return f"Both take about as long ({times}){but or f', {steps}'}."
    return f"{_first(fast)} is {ratio:.2f} times as fast: {times}, {steps}."


def reasons(a: Side, b: Side, targets: Targets) -> list[str]:
    """Why, in sentences: only what differs noticeably, the weightiest first."""
    sentences = [
        _waste(a, b),
        _reserved(a, b),
        _sharing(a, b),
        _preempted(a, b),
        _first_token(a, b),
        _gaps(a, b),
        _goodput(a, b, targets),
    ]
    return [sentence for sentence in sentences if sentence]


def _waste(a: Side, b: Side) -> str:
    worse, better = (a, b) if a.figures.wasted_slot_steps >= b.figures.wasted_slot_steps else (b, a)
    lost, kept = worse.figures, better.figures
    if not lost.wasted_slot_steps or not _differ(lost.wasted_slot_steps, kept.wasted_slot_steps):
        return ""
    sentence = (
        f"{_first(worse)} computed {lost.wasted_slot_steps:,} rows for nothing, {_share(1 - lost.utilization)} of all "
        f"its rows: {lost.inactive_rows:,} for slots whose request had ended and {lost.padding_rows:,} of padding. "
    )
    if kept.wasted_slot_steps:
        return f"{sentence}{_first(better)} wasted {kept.wasted_slot_steps:,}."
    return f"{sentence}{_first(better)} wasted none: it gives a slot away as soon as its request ends, and never pads."


def _reserved(a: Side, b: Side) -> str:
    worse, better = (a, b) if a.figures.internal_fragmentation >= b.figures.internal_fragmentation else (b, a)
    left, right = worse.figures, better.figures
    if left.internal_fragmentation - right.internal_fragmentation < NOTEWORTHY:
        return ""
    sentence = (
        f"{_first(worse)} kept {_share(left.internal_fragmentation)} of the memory it owned reserved but unused, "
        f"{better.name} {_share(right.internal_fragmentation)}"
    )
    if left.most_at_once < right.most_at_once:
        return f"{sentence}; so at most {left.most_at_once} requests ran at once, against {right.most_at_once}."
    return f"{sentence}; peak {_share(left.peak_memory)} of the pool against {_share(right.peak_memory)}."


def _sharing(a: Side, b: Side) -> str:
    more, less = (a, b) if a.figures.prefix_hit_rate >= b.figures.prefix_hit_rate else (b, a)
    if more.figures.prefix_hit_rate - less.figures.prefix_hit_rate < NOTEWORTHY:
        return ""
    return (
        f"{_first(more)} found {_share(more.figures.prefix_hit_rate)} of all prompt tokens in the prefix cache and did "
        f"not compute them again; {less.name} found {_share(less.figures.prefix_hit_rate)}."
    )


def _preempted(a: Side, b: Side) -> str:
    more, less = (a, b) if a.figures.num_preemptions >= b.figures.num_preemptions else (b, a)
    if more.figures.num_preemptions == less.figures.num_preemptions:
        return ""
    return (
        f"{_first(more)} ran out of blocks and threw requests out {more.figures.num_preemptions} times, to compute "
        f"them again later; {less.name} {less.figures.num_preemptions} times."
    )


def _first_token(a: Side, b: Side) -> str:
    return _median(a, b, "ttft_p50_s", "Half of all first tokens were there")


def _gaps(a: Side, b: Side) -> str:
    left, right = a.figures.itl_max_s, b.figures.itl_max_s
    if not left or not right or not _differ(left, right) or seconds(left) == seconds(right):
        return ""
    usual = ""
    if a.figures.itl_p50_s and b.figures.itl_p50_s:
        usual = f" (half of all gaps: {seconds(a.figures.itl_p50_s)} and {seconds(b.figures.itl_p50_s)})"
    return (
        f"Once an answer flows, its longest pause between two tokens is {seconds(left)} under {a.name} and "
        f"{seconds(right)} under {b.name}{usual}."
    )


def _first_difference(a: Side, b: Side) -> str:
    """The difference that is felt most where the total time is the same."""
    felt = {"itl_max_s": "the longest pause in an answer", "ttft_p50_s": "the median wait for a first token"}
    ratios = {}
    for key in felt:
        left, right = getattr(a.figures, key), getattr(b.figures, key)
        if left and right and _differ(left, right):
            ratios[key] = max(left, right) / min(left, right)
    if not ratios:
        return ""
    key = max(ratios, key=lambda name: ratios[name])
    left, right = seconds(getattr(a.figures, key)), seconds(getattr(b.figures, key))
    return f", but {felt[key]} is {left} under {a.name} and {right} under {b.name}"


def _median(a: Side, b: Side, key: str, begin: str) -> str:
    left, right = getattr(a.figures, key), getattr(b.figures, key)
    if not left or not right or not _differ(left, right):
        return ""
    fast, slow = (a, b) if left < right else (b, a)
    return (
        f"{begin} within {seconds(getattr(fast.figures, key))} under {fast.name}, "
        f"within {seconds(getattr(slow.figures, key))} under {slow.name}."
    )


def _goodput(a: Side, b: Side, targets: Targets) -> str:
    left, right = a.figures.goodput_per_s, b.figures.goodput_per_s
    if not _differ(left, right):
        return ""
    return (
        f"With a first token within {seconds(targets.ttft_s)} and gaps under {seconds(targets.itl_s)} as the targets, "
        f"{a.name} serves {left:.2f} good requests a second, {b.name} {right:.2f}."
    )
