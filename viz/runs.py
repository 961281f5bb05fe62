"""Finished runs in the feed's own form, for replayed traces and comparisons.

Owns the renumbering that makes two runs of one workload comparable: their first requests are both A. Never knows where
the records came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from engine.telemetry.record import BlockChanges, Event, EventKind, StepRecord, Wait
from engine.telemetry.ring import BlockMap
from viz.encoding import dumps, encode_base, encode_step

V = TypeVar("V")
_OTHER_REQUESTS = ("for_request", "sibling_of")
"""Details of events that name a request."""


def encode_run(records: Sequence[StepRecord], base: BlockMap | None = None) -> dict[str, Any]:
    """A whole run as one answer of the feed; `base` is the block map before the first record, None an empty pool."""
    blocks = base.copy() if base else BlockMap()
    if base is None and records:
        first = records[0]
        blocks.num_blocks, blocks.block_size, blocks.step = first.num_blocks, first.block_size, first.step - 1
    encoded_base = json.loads(dumps(encode_base(blocks)))
    steps: list[dict[str, Any]] = []
    previous = None
    for record in records:
        steps.append(encode_step(record, previous, blocks))
        blocks.apply(record)
        previous = record
    oldest = records[0].step if records else blocks.step + 1
    newest = records[-1].step if records else blocks.step
    return {"epoch": "run", "oldest": oldest, "newest": newest, "base": encoded_base, "steps": steps}


def renumbered(records: Sequence[StepRecord]) -> list[StepRecord]:
    """The same records with request ids that begin at 1."""
    arrived = [e.request_id for r in records for e in r.events if e.kind is EventKind.ARRIVED and e.request_id]
    shift = min(arrived, default=1) - 1
    return [_shifted(record, shift) for record in records] if shift else list(records)


def _shifted(record: StepRecord, by: int) -> StepRecord:
    def ids(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(value - by for value in values)

    def keys(values: Mapping[int, V]) -> dict[int, V]:
        return {key - by: value for key, value in values.items()}

    def wait(value: Wait) -> Wait:
        return value if value.behind is None else replace(value, behind=value.behind - by)

    def event(value: Event) -> Event:
        details = {k: v - by if k in _OTHER_REQUESTS and v is not None else v for k, v in value.details.items()}
        request_id = None if value.request_id is None else value.request_id - by
        return replace(value, request_id=request_id, details=details)

    blocks = record.blocks
    return replace(
        record,
        pending_prefill=ids(record.pending_prefill),
        pending_decode=ids(record.pending_decode),
        active_prefill=ids(record.active_prefill),
        active_decode=ids(record.active_decode),
        num_tokens=keys(record.num_tokens),
        padding=keys(record.padding),
        computed=keys(record.computed),
        outputs=keys(record.outputs),
        waiting={key - by: wait(value) for key, value in record.waiting.items()},
        waiting_default=wait(record.waiting_default) if record.waiting_default else None,
        blocks=BlockChanges(keys(blocks.tables), ids(blocks.released), blocks.cached, blocks.uncached),
        events=tuple(event(value) for value in record.events),
    )
