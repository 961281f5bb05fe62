"""A stretch of a longer history as a run of its own: counted from its beginning, its requests renumbered.

Owns that translation, so that two runs measured one after the other can be laid side by side. Never knows what is
compared. Only records are changed, copies of them: the history they come from stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from engine.telemetry.record import BlockChanges, Event, StepRecord, Wait

COUNTERS = (
    "num_preemptions",
    "num_evictions",
    "prefix_query_tokens",
    "prefix_hit_tokens",
    "wasted_slot_steps",
)
_REQUEST_DETAILS = ("for_request", "sibling_of")
_TIME_DETAILS = ("arrival_s",)
V = TypeVar("V")


def cut(
    records: Sequence[StepRecord], before: StepRecord | None = None, ids: Mapping[int, int] | None = None
) -> tuple[StepRecord, ...]:
    """`records` as a run that begins with step 1 at 0 s, with counters from 0.

    `before` is the record just before them, None when they are the first ever. `ids` gives requests new numbers;
    those that are not in it get numbers after the largest one, in the order in which they appear.
    """
    if not records:
        return ()
    number = _numbering(dict(ids or {}))
    first = records[0]
    begin = min([first.time_s, *_arrivals(records)])
    known = {counter: getattr(before, counter) if before else 0 for counter in COUNTERS}
    return tuple(_moved(record, number, begin, first.step - 1, known) for record in records)


def _numbering(ids: dict[int, int]) -> Callable[[int], int]:
    following = max(ids.values(), default=0)

    def number(request_id: int) -> int:
        nonlocal following
        if request_id not in ids:
            following += 1
            ids[request_id] = following
        return ids[request_id]

    return number


def _arrivals(records: Sequence[StepRecord]) -> list[float]:
    return [event.details["arrival_s"] for record in records for event in record.events if "arrival_s" in event.details]


def _moved(
    record: StepRecord, number: Callable[[int], int], begin: float, steps: int, known: Mapping[str, int]
) -> StepRecord:
    def keys(mapping: Mapping[int, V]) -> dict[int, V]:
        return {number(request_id): value for request_id, value in mapping.items()}

    def several(request_ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(number(request_id) for request_id in request_ids)

    events = tuple(_event(event, number, begin) for event in record.events)
    return replace(
        record,
        step=record.step - steps,
        time_s=record.time_s - begin,
        pending_prefill=several(record.pending_prefill),
        pending_decode=several(record.pending_decode),
        active_prefill=several(record.active_prefill),
        active_decode=several(record.active_decode),
        num_tokens=keys(record.num_tokens),
        padding=keys(record.padding),
        computed=keys(record.computed),
        outputs=keys(record.outputs),
        waiting={number(rid): _wait(wait, number) for rid, wait in record.waiting.items()},
        waiting_default=_wait(record.waiting_default, number) if record.waiting_default else None,
        blocks=BlockChanges(
            keys(record.blocks.tables), several(record.blocks.released), record.blocks.cached, record.blocks.uncached
        ),
        events=events,
        **{counter: getattr(record, counter) - known[counter] for counter in COUNTERS},
    )


def _wait(wait: Wait, number: Callable[[int], int]) -> Wait:
    return wait if wait.behind is None else replace(wait, behind=number(wait.behind))


def _event(event: Event, number: Callable[[int], int], begin: float) -> Event:
    details: dict[str, Any] = dict(event.details)
    for name in _REQUEST_DETAILS:
        if isinstance(details.get(name), int):
            details[name] = number(details[name])
    for name in _TIME_DETAILS:
        if name in details:
            details[name] -= begin
    return Event(event.kind, None if event.request_id is None else number(event.request_id), details)
