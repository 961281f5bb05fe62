"""Traces in other programs' forms: Chrome's trace event format and tables."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from engine.telemetry import frames, perfetto
from engine.telemetry.record import EventKind
from tests.flow.traced_runs import SHARING, run

REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "i": {"name", "ph", "ts", "pid", "tid", "s", "args"},
}


@pytest.fixture(scope="module")
def records():
    return run(11, settings=SHARING)[1]


@pytest.fixture(scope="module")
def document(records):
    return json.loads("".join(perfetto.iter_json(records, {"model": "simulated"})))


def slices_of(document, pid, tid=None):
    return [e for e in document["traceEvents"] if e["ph"] == "X" and e["pid"] == pid and tid in (None, e["tid"])]


def test_every_event_has_what_its_phase_needs(document):
    assert document["otherData"] == {"model": "simulated"}
    for event in document["traceEvents"]:
        assert REQUIRED[event["ph"]] <= set(event)
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] >= 0
        assert event["ph"] != "C" or all(isinstance(value, (int, float)) for value in event["args"].values())


def test_slices_of_a_track_nest(document):
    """The format's rule: of two slices on one track, one holds the other or they do not touch."""
    tracks = defaultdict(list)
    for event in slices_of(document, perfetto.ENGINE) + slices_of(document, perfetto.REQUESTS):
        tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) > 20
    for track in tracks.values():
        open_ends: list[float] = []
        for start, end in track:  # as in the file: by start, longest first
            while open_ends and open_ends[-1] <= start + 2e-3:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 2e-3
            open_ends.append(end)


def test_every_step_is_a_slice(document, records):
    steps = [e for e in slices_of(document, perfetto.ENGINE) if e["name"].startswith("step ")]
    steps.sort(key=lambda event: int(event["name"].split()[1]))  # some took no time at all
    assert [e["name"] for e in steps] == [f"step {record.step}" for record in records]
    for event, record in zip(steps, records, strict=True):
        assert event["ts"] == pytest.approx(record.time_s * 1e6, abs=0.01)
        assert event["dur"] == pytest.approx(record.duration_s * 1e6, abs=0.01)


def test_every_request_is_a_track_whose_last_slice_says_how_it_ended(document, records):
    names = {e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    ends = {e.request_id: e.details for r in records for e in r.events if e.kind is EventKind.FINISHED}
    assert len(ends) >= 40
    seen = 0
    for request_id, details in ends.items():
        assert names[request_id + 1] == f"request {request_id}"
        slices = slices_of(document, perfetto.REQUESTS, request_id + 1)
        if slices and "reason" in slices[-1].get("args", {}):
            assert slices[-1]["args"]["reason"] == details["reason"]
            seen += 1
    assert seen > 20


def test_memory_is_a_counter(document, records):
    blocks = [e["args"] for e in document["traceEvents"] if e["ph"] == "C" and e["name"] == "blocks"]
    assert blocks == [{"active": r.num_active_blocks, "cached": r.num_cached_blocks} for r in records]


def test_an_empty_run_is_a_document_too():
    assert json.loads("".join(perfetto.iter_json([], {})))["traceEvents"][0]["ph"] == "M"


def test_a_row_a_step(records):
    table = frames.steps_frame(records)
    assert tuple(table.columns) == frames.STEP_COLUMNS
    assert len(table) == len(records)
    assert table["num_preemptions"].iloc[-1] == records[-1].num_preemptions
    for row, record in zip(table.to_dict("records"), records, strict=True):
        assert row["num_prefill_tokens"] + row["num_decode_tokens"] == sum(record.num_tokens.values())
        assert row["num_running"] + row["num_waiting"] == len({*record.pending_prefill, *record.pending_decode})


def test_a_row_a_request(records):
    table = frames.requests_frame(records, start_s=1000.0).set_index("request_id")
    assert tuple(table.columns) == frames.REQUEST_COLUMNS[1:]
    finished = {e.request_id: (r.step, e.details) for r in records for e in r.events if e.kind is EventKind.FINISHED}
    assert set(table.index) == set(finished)
    for request_id, (step, details) in finished.items():
        row = table.loc[request_id]
        assert row["finish_step"] == step
        assert row["reason"] == details["reason"]
        assert row["num_output_tokens"] == details["num_output_tokens"]
    arrivals = {e.request_id: e.details["arrival_s"] for r in records for e in r.events if e.kind is EventKind.ARRIVED}
    assert (table["arrival_s"] + 1000.0 - table.index.map(arrivals)).abs().max() < 1e-6


def test_gaps_between_tokens_are_those_of_the_steps(records):
    table = frames.requests_frame(records).set_index("request_id")
    times = defaultdict(list)
    for record in records:
        for request_id in record.outputs:
            times[request_id].append(record.time_s + record.duration_s)
    several = {request_id: ends for request_id, ends in times.items() if len(ends) > 2}
    assert several
    for request_id, ends in several.items():
        gaps = [after - before for before, after in pairwise(ends)]
        assert table.loc[request_id, "max_itl_s"] == pytest.approx(max(gaps))
        assert table.loc[request_id, "mean_itl_s"] == pytest.approx(sum(gaps) / len(gaps))
