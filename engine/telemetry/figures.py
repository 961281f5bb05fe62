"""A run in figures: what its step records say about speed, waiting and waste.

Owns the definitions of the figures. Never knows where the records come from: the real engine, the simulated one or
a trace. Times are seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.telemetry.record import Event, EventKind, StepRecord


@dataclass(frozen=True, slots=True)
class Targets:
    """When an answer was good enough to count for goodput: its TTFT, and each gap between its tokens (p95)."""

    ttft_s: float = 1.0
    itl_s: float = 0.1


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The figures of one run. Percentiles are None where nothing was measured; shares are from 0 to 1.

    `makespan_s` runs from the first arrival to the end of the last step. `utilization` is useful rows (tokens) ÷ all
    rows computed. Fragmentation is the mean over the time in which blocks were owned.
    """

    num_finished: int
    num_steps: int
    makespan_s: float
    output_tokens: int
    output_tokens_per_s: float
    wasted_slot_steps: int
    padding_rows: int
    inactive_rows: int
    utilization: float
    peak_blocks: int
    peak_memory: float
    internal_fragmentation: float
    external_fragmentation: float
    num_preemptions: int
    most_at_once: int
    mean_finish_step: float | None
    prefix_hit_rate: float
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    itl_max_s: float | None
    queue_p50_s: float | None
    queue_p95_s: float | None
    goodput_per_s: float


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value at `share` (0 to 1) of the sorted values, between neighbours in proportion; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def figures_of(records: Sequence[StepRecord], targets: Targets | None = None) -> RunFigures:
    """Work out the figures of a whole run, whose counters begin at 0 (see `engine.telemetry.cut` for a part of one).

    Raises ValueError for a run without a step.
    """
    if not records:
        raise ValueError("a run without a step has no figures")
    targets = targets or Targets()
    gaps = token_gaps(records)
    finished = [event for event in _events(records, EventKind.FINISHED) if event.details["reason"] in _COMPLETE]
    arrived = [float(event.details["arrival_s"]) for event in _events(records, EventKind.ARRIVED)]
    begin = min([records[0].time_s, *arrived])
    makespan = max(1e-9, records[-1].time_s + records[-1].duration_s - begin)
    useful = sum(sum(record.num_tokens.values()) for record in records)
    padding = sum(sum(record.padding.values()) for record in records)
    inactive = sum(record.num_inactive_rows for record in records)
    ttfts = [float(event.details["ttft_s"]) for event in finished if "ttft_s" in event.details]
    queues = [float(event.details["queue_s"]) for event in finished if "queue_s" in event.details]
    all_gaps = [gap for of_one in gaps.values() for gap in of_one]
    hits, queries = records[-1].prefix_hit_tokens, records[-1].prefix_query_tokens
    peak = max(records, key=lambda record: record.num_active_blocks / record.num_blocks)
    output_tokens = sum(int(event.details["num_output_tokens"]) for event in finished)
    good = [event for event in finished if _is_good(event, gaps, targets)]
    return RunFigures(
        num_finished=len(finished),
        num_steps=sum(1 for record in records if record.num_tokens or record.num_inactive_rows),
        makespan_s=makespan,
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / makespan,
        wasted_slot_steps=padding + inactive,
        padding_rows=padding,
        inactive_rows=inactive,
        utilization=useful / max(1, useful + padding + inactive),
        peak_blocks=peak.num_active_blocks,
        peak_memory=peak.num_active_blocks / peak.num_blocks,
        internal_fragmentation=_mean_while_owned(records, [record.internal_fragmentation for record in records]),
        external_fragmentation=_mean_while_owned(records, [record.external_fragmentation for record in records]),
        most_at_once=max(len(record.num_tokens) for record in records),
        mean_finish_step=_mean_finish_step(records),
        num_preemptions=len(_events(records, EventKind.PREEMPTED)),
        prefix_hit_rate=hits / queries if queries else 0.0,
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p95_s=percentile(ttfts, 0.95),
        itl_p50_s=percentile(all_gaps, 0.5),
        itl_p95_s=percentile(all_gaps, 0.95),
        itl_max_s=max(all_gaps, default=None),
        queue_p50_s=percentile(queues, 0.5),
        queue_p95_s=percentile(queues, 0.95),
        goodput_per_s=len(good) / makespan,
    )


_COMPLETE = ("stop", "length")


def token_gaps(records: Sequence[StepRecord]) -> dict[int, list[float]]:
    """Per request, the seconds between one token and the next (ITL), as they came."""
    last: dict[int, float] = {}
    gaps: dict[int, list[float]] = {}
    for record in records:
        now = record.time_s + record.duration_s
        for request_id in record.outputs:
            if request_id in last:
                gaps.setdefault(request_id, []).append(now - last[request_id])
            last[request_id] = now
    return gaps


def _events(records: Sequence[StepRecord], kind: EventKind) -> list[Event]:
    return [event for record in records for event in record.events if event.kind is kind]


def _is_good(event: Event, gaps: dict[int, list[float]], targets: Targets) -> bool:
    ttft = event.details.get("ttft_s")
    slowest = percentile(gaps.get(event.request_id or 0, ()), 0.95)
    return ttft is not None and ttft <= targets.ttft_s and (slowest is None or slowest <= targets.itl_s)


def _mean_finish_step(records: Sequence[StepRecord]) -> float | None:
    """Mean number of the step in which a request ended; only steps that computed something are counted."""
    step, ends = 0, []
    for record in records:
        step += bool(record.num_tokens or record.num_inactive_rows)
        ends += [step for event in record.events if event.kind is EventKind.FINISHED]
    return sum(ends) / len(ends) if ends else None


def _mean_while_owned(records: Sequence[StepRecord], values: Sequence[float]) -> float:
    weights = [record.duration_s if record.num_active_blocks else 0.0 for record in records]
    total = sum(weights)
    if not total:
        return 0.0
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total
