"""Step records as pandas tables: one row a step, one row a request.

Owns the columns. pandas is imported only when a table is made. Times are seconds of the engine's clock from its start
(`time_s`, `arrival_s`) or durations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from engine.telemetry.record import EventKind, StepRecord

if TYPE_CHECKING:
    import pandas as pd

STEP_COLUMNS = (
    "step",
    "time_s",
    "duration_s",
    "policy",
    "kv_layout",
    "num_waiting",
    "num_running",
    "num_prefill_tokens",
    "num_decode_tokens",
    "num_padding",
    "num_inactive_rows",
    "num_free_blocks",
    "num_cached_blocks",
    "num_active_blocks",
    "num_stored_tokens",
    "internal_fragmentation",
    "external_fragmentation",
    "num_preemptions",
    "num_evictions",
    "prefix_query_tokens",
    "prefix_hit_tokens",
    "wasted_slot_steps",
    "schedule_s",
    "batch_s",
    "forward_s",
    "sample_s",
    "commit_s",
    "publish_s",
)
REQUEST_COLUMNS = (
    "request_id",
    "arrival_s",
    "num_prompt_tokens",
    "max_tokens",
    "sibling_of",
    "num_output_tokens",
    "cached_tokens",
    "num_preemptions",
    "reason",
    "queue_s",
    "ttft_s",
    "prefill_s",
    "decode_s",
    "e2e_s",
    "mean_itl_s",
    "max_itl_s",
    "finish_step",
)


def steps_frame(records: Iterable[StepRecord]) -> pd.DataFrame:
    """One row a step, with `STEP_COLUMNS`."""
    import pandas as pd

    return pd.DataFrame([_step_row(record) for record in records], columns=list(STEP_COLUMNS))


def requests_frame(records: Iterable[StepRecord], start_s: float = 0.0) -> pd.DataFrame:
    """One row a request that is named in the records, with `REQUEST_COLUMNS`; what is not known is left empty.

    `start_s` is the engine's clock at its start (a trace's header has it). `mean_itl_s` and `max_itl_s` are of the gaps
    between a request's tokens, taken at the ends of steps.
    """
    import pandas as pd

    rows: dict[int, dict[str, Any]] = {}
    last_token_s: dict[int, float] = {}
    gaps: dict[int, list[float]] = {}
    for record in records:
        ended_s = record.time_s + record.duration_s
        for request_id in record.outputs:
            if request_id in last_token_s:
                gaps.setdefault(request_id, []).append(ended_s - last_token_s[request_id])
            last_token_s[request_id] = ended_s
        for event in record.events:
            if event.request_id is None:
                continue
            row = rows.setdefault(event.request_id, {"request_id": event.request_id})
            if event.kind in (EventKind.ARRIVED, EventKind.FINISHED):
                row.update({name: value for name, value in event.details.items() if name in REQUEST_COLUMNS})
            if event.kind is EventKind.FINISHED:
                row["finish_step"] = record.step
    for row in rows.values():
        if "arrival_s" in row:
            row["arrival_s"] -= start_s
    for request_id, own in gaps.items():
        row = rows.setdefault(request_id, {"request_id": request_id})
        row["mean_itl_s"], row["max_itl_s"] = sum(own) / len(own), max(own)
    return pd.DataFrame(list(rows.values()), columns=list(REQUEST_COLUMNS))


def _step_row(record: StepRecord) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in STEP_COLUMNS if hasattr(record, name)}
    running = {*record.active_prefill, *record.pending_decode}
    return row | {
        "num_waiting": sum(request_id not in running for request_id in record.pending_prefill),
        "num_running": len(running),
        "num_prefill_tokens": sum(record.num_tokens.get(request_id, 0) for request_id in record.active_prefill),
        "num_decode_tokens": sum(record.num_tokens.get(request_id, 0) for request_id in record.active_decode),
        "num_padding": sum(record.padding.values()),
        **asdict(record.times),
    }
