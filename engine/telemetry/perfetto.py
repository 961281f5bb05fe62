"""Step records in Chrome's trace event format, which the Perfetto UI opens.

Owns the mapping: requests are tracks (queued, prefill, decode, preempted as slices), steps are slices with their parts
inside, memory and queue lengths are counters. The format is the JSON array format of Chrome's "Trace Event Format".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.telemetry.record import Event, EventKind, StepRecord

ENGINE, REQUESTS = 1, 2
"""Process ids: Perfetto groups tracks by them."""
STEP_TRACK = 1

_PARTS = ("schedule_s", "batch_s", "forward_s", "sample_s", "commit_s")


@dataclass
class _Track:
    """What one request is doing, and since when."""

    doing: str
    since_s: float
    args: dict[str, Any] = field(default_factory=dict)


def iter_json(records: Iterable[StepRecord], model: Mapping[str, Any]) -> Iterator[str]:
    """One JSON document, in pieces."""
    yield '{"displayTimeUnit":"ms","otherData":' + json.dumps(dict(model)) + ',"traceEvents":[\n'
    is_first = True
    # What begins at the same time must stand longest first, or it does not nest.
    for event in sorted(events(records), key=lambda event: (event.get("ts", -1.0), -event.get("dur", 0.0))):
        yield ("" if is_first else ",\n") + json.dumps(event, separators=(",", ":"), allow_nan=False)
        is_first = False
    yield "\n]}\n"


def events(records: Iterable[StepRecord]) -> Iterator[dict[str, Any]]:
    """The trace events, each a dict in the format's own names; `ts` and `dur` are microseconds."""
    yield _name("process_name", ENGINE, 0, "engine")
    yield _name("thread_name", ENGINE, STEP_TRACK, "steps")
    yield _name("process_name", REQUESTS, 0, "requests")
    tracks: dict[int, _Track] = {}
    ended_s = 0.0
    for record in records:
        ended_s = record.time_s + record.duration_s
        yield from _step(record)
        yield from _counters(record)
        for event in record.events:
            if event.request_id is not None:
                yield from _request_event(tracks, record, event)
            elif event.kind is not EventKind.EVICTED:
                yield _instant(ENGINE, STEP_TRACK, record.time_s, event.kind.value, dict(event.details))
        for request_id in record.active_decode:
            track = tracks.get(request_id)
            if track is not None and track.doing != "decoding":  # it was preempted, and its prompt is computed again
                yield from _turn(request_id, track, "decoding", record.time_s, {})
        for request_id in record.active_prefill:
            yield _slice(REQUESTS, request_id + 1, record, f"prefill {record.num_tokens.get(request_id, 0)}", {})
    for request_id, track in tracks.items():
        yield from _close(request_id, track, ended_s)


def _step(record: StepRecord) -> Iterator[dict[str, Any]]:
    args = {
        "policy": record.policy,
        "prefill": list(record.active_prefill),
        "decode": list(record.active_decode),
        "tokens": sum(record.num_tokens.values()),
        "padding": sum(record.padding.values()),
        "inactive_rows": record.num_inactive_rows,
    }
    yield _slice(ENGINE, STEP_TRACK, record, f"step {record.step}", args)
    at_s, end_s = record.time_s, record.time_s + record.duration_s
    for name in _PARTS:
        seconds = min(getattr(record.times, name), end_s - at_s)  # simulated and real clocks may disagree
        if seconds > 0:
            yield {
                "name": name.removesuffix("_s"),
                "cat": "engine",
                "ph": "X",
                "ts": _micros(at_s),
                "dur": _length(at_s, at_s + seconds),
                "pid": ENGINE,
                "tid": STEP_TRACK,
            }
            at_s += seconds


def _counters(record: StepRecord) -> Iterator[dict[str, Any]]:
    running = len({*record.active_prefill, *record.pending_decode})
    values: dict[str, dict[str, float]] = {
        "blocks": {"active": record.num_active_blocks, "cached": record.num_cached_blocks},
        "requests": {"running": running, "pending_prefill": len(record.pending_prefill)},
        "fragmentation": {"internal": record.internal_fragmentation, "external": record.external_fragmentation},
        "preemptions": {"total": record.num_preemptions},
    }
    for name, series in values.items():
        yield {"name": name, "ph": "C", "ts": _micros(record.time_s), "pid": ENGINE, "args": series}


def _request_event(tracks: dict[int, _Track], record: StepRecord, event: Event) -> Iterator[dict[str, Any]]:
    request_id = event.request_id
    assert request_id is not None
    ended_s = record.time_s + record.duration_s
    if event.kind is EventKind.ARRIVED:
        yield _name("thread_name", REQUESTS, request_id + 1, f"request {request_id}")
        tracks[request_id] = _Track("queued", record.time_s, dict(event.details))
        return
    track = tracks.get(request_id)
    if track is None:
        yield _name("thread_name", REQUESTS, request_id + 1, f"request {request_id}")
        track = tracks[request_id] = _Track("running", record.time_s)
    if event.kind is EventKind.ADMITTED:
        yield from _turn(request_id, track, "prefilling", record.time_s, dict(event.details))
    elif event.kind is EventKind.FIRST_TOKEN:
        yield from _turn(request_id, track, "decoding", ended_s, dict(event.details))
    elif event.kind is EventKind.PREEMPTED:
        yield from _turn(request_id, track, "preempted", record.time_s, dict(event.details))
    elif event.kind is EventKind.FINISHED:
        track.args |= dict(event.details)
        yield from _close(request_id, track, ended_s)
        del tracks[request_id]


def _turn(request_id: int, track: _Track, doing: str, at_s: float, args: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from _close(request_id, track, at_s)
    track.doing, track.since_s, track.args = doing, at_s, args


def _close(request_id: int, track: _Track, at_s: float) -> Iterator[dict[str, Any]]:
    if at_s > track.since_s:
        yield {
            "name": track.doing,
            "cat": "request",
            "ph": "X",
            "ts": _micros(track.since_s),
            "dur": _length(track.since_s, at_s),
            "pid": REQUESTS,
            "tid": request_id + 1,
            "args": track.args,
        }


def _slice(pid: int, tid: int, record: StepRecord, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "cat": "engine" if pid == ENGINE else "request",
        "ph": "X",
        "ts": _micros(record.time_s),
        "dur": _length(record.time_s, record.time_s + record.duration_s),
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def _instant(pid: int, tid: int, at_s: float, name: str, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "i", "s": "p", "ts": _micros(at_s), "pid": pid, "tid": tid, "args": args}


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _micros(seconds: float) -> float:
    return round(max(0.0, seconds) * 1e6, 3)


def _length(start_s: float, end_s: float) -> float:
    """So that a slice ends exactly where the next one begins, however both were rounded."""
    return round(_micros(end_s) - _micros(start_s), 3)
