"""The requests that this engine just served, as a workload to compare with.

Owns which of them, and what is kept: when each came and how long its prompt and its answer were. Never knows a text or
a token: neither is in a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from engine.serving.trace_csv import TraceRow
from engine.serving.workload import Arrivals, WorkloadError, WorkloadSpec
from engine.telemetry.record import EventKind, StepRecord

SERVED = "The requests just served here"
MOST = 64
SPAN_S = 120.0
"""Nobody wants to wait longer for a measured run; what came earlier is left out."""


def served_here(records: Iterable[StepRecord], max_total_tokens: int, without: frozenset[int]) -> WorkloadSpec:
    """The last ones that were answered in full, but for those `without`. Raises WorkloadError where there are none."""
    arrivals: dict[int, float] = {}
    rows = []
    for event in (event for record in records for event in record.events):
        request_id, details = event.request_id, event.details
        if request_id is None or request_id in without:
            continue
        if event.kind is EventKind.ARRIVED:
            arrivals[request_id] = float(details["arrival_s"])
        elif event.kind is EventKind.FINISHED and details["reason"] in ("stop", "length") and request_id in arrivals:
            lengths = int(details["num_prompt_tokens"]), max(1, int(details["num_output_tokens"]))
            rows.append(TraceRow(arrivals[request_id], *lengths))
    rows = sorted(rows, key=lambda row: row.arrival_s)[-MOST:]
    rows = [row for row in rows if rows[-1].arrival_s - row.arrival_s <= SPAN_S]
    if not rows:
        raise WorkloadError("no request has been answered here yet; send some from the tab Live, then compare")
    trace = tuple(replace(row, arrival_s=row.arrival_s - rows[0].arrival_s) for row in rows)
    return WorkloadSpec(len(trace), Arrivals.TRACE, trace=trace, max_total_tokens=max_total_tokens)
