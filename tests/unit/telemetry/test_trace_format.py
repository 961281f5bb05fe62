"""A trace's lines: what is written is read back, and nothing else is."""

from __future__ import annotations

import json

import pytest

from engine.replay import decisions
from engine.telemetry.checked import TraceError
from engine.telemetry.record import SCHEMA_VERSION
from engine.telemetry.ring import BlockMap
from engine.telemetry.trace_format import (
    Header,
    TraceStep,
    base_line,
    end_line,
    header_line,
    parse_header,
    parse_line,
    step_line,
)
from tests.flow.traced_runs import SHARING, run

HEADER = Header("0123abcd", 17.25, {"policy": "mixed", "prefix_caching": True}, {"model": "m"})


@pytest.fixture(scope="module")
def some_run():
    return run(3, settings=SHARING)


def test_a_header_is_read_back():
    assert parse_header(header_line(HEADER).encode()) == HEADER


def test_every_record_and_entry_of_a_run_is_read_back(some_run):
    engine, records = some_run
    entries = {entry.step: entry for entry in engine.journal.entries(0, 1 << 60)}
    kinds = set()
    for record in records:
        step = parse_line(step_line(record, entries[record.step]).encode())
        assert isinstance(step, TraceStep)
        assert step.entry == entries[record.step]
        assert decisions(step.record) == decisions(record)
        assert step.record.time_s == record.time_s  # to the last bit: a static cohort's wait hangs on it
        assert step.record.events == record.events
        assert step.record.duration_s == pytest.approx(record.duration_s, abs=1e-6)
        kinds |= {event.kind for event in record.events}
    assert len(kinds) >= 7, "the run was too dull to show anything"


def test_a_block_map_is_read_back(some_run):
    _, records = some_run
    base = BlockMap(0, records[0].num_blocks, records[0].block_size)
    for record in records[:60]:
        base.apply(record)
    read = parse_line(base_line(base).encode())
    assert isinstance(read, BlockMap)
    assert read == base


def test_the_end_is_words():
    assert parse_line(end_line("all is well").encode()) == "all is well"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"trace": "other"}, "no trace"),
        ({"version": SCHEMA_VERSION + 1}, "version"),
        ({"epoch": 5}, "epoch: expected a short word"),
        ({"epoch": None}, "epoch"),
        ({"start_s": "now"}, "start_s: expected a number"),
        ({"start_s": 1e999}, "not a number|expected a number|not JSON"),
        ({"settings": []}, "settings: expected an object"),
        ({"model": {"name": "x" * 501}}, "at most 500 characters"),
    ],
)
def test_a_wrong_header_is_refused_in_words(change: dict[str, object], words: str):
    raw = json.loads(header_line(HEADER)) | change
    with pytest.raises(TraceError, match=words):
        parse_header(json.dumps(raw).encode())


def test_a_header_without_settings_is_refused():
    raw = json.loads(header_line(HEADER))
    del raw["settings"]
    with pytest.raises(TraceError, match="settings is missing"):
        parse_header(json.dumps(raw).encode())


STEP = {
    "step": 1,
    "time_s": 0.5,
    "policy": "mixed",
    "kv_layout": "paged",
    "token_budget": 8,
    "max_num_seqs": 2,
    "num_blocks": 4,
    "block_size": 2,
}


def test_a_step_may_leave_out_what_is_empty():
    step = parse_line(json.dumps({"step": STEP}).encode())
    assert isinstance(step, TraceStep)
    assert step.record.pending_prefill == ()
    assert step.entry.inputs == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": -1}, "step: expected a whole number"),
        ({"step": True}, "step: expected a whole number"),
        ({"step": 2**60}, "step: expected a whole number"),
        ({"num_blocks": 0}, "cannot be"),
        ({"num_blocks": 10**9}, "cannot be"),
        ({"policy": "<script>"}, "policy: expected a short word"),
        ({"pending_decode": "all"}, "pending_decode: expected a list"),
        ({"pending_decode": [1.5]}, "pending_decode: expected a whole number"),
        ({"computed": {"-1": 3}}, "computed: expected a request id"),
        ({"block_tables": {"1": [0, [9]]}}, "outside the pool"),
        ({"block_tables": {"1": [0]}}, "expected two values"),
        ({"cached": [[7, "ab"]]}, "outside the pool"),
        ({"waiting_default": {"reason": "boredom"}}, "none of"),
        ({"waiting": {"1": {}}}, "reason is missing"),
        ({"events": [{"type": "party"}]}, "none of"),
        ({"events": [{"type": "failed", "error": {"deep": 1}}]}, "expected a number"),
        ({"events": [{"type": "failed", "error": "x" * 501}]}, "at most 500"),
        ({"times": {"forward_s": "long"}}, "times: forward_s: expected a number"),
        ({"internal_fragmentation": None}, "expected a number"),
    ],
)
def test_a_wrong_step_is_refused_in_words(change: dict[str, object], words: str):
    with pytest.raises(TraceError, match=words):
        parse_line(json.dumps({"step": STEP | change}).encode())


@pytest.mark.parametrize("name", sorted(STEP))
def test_a_step_needs_its_first_fields(name: str):
    with pytest.raises(TraceError, match=f"{name} is missing"):
        parse_line(json.dumps({"step": {key: value for key, value in STEP.items() if key != name}}).encode())


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"type": "wish"}, "arrival, an abort or a change"),
        ({"type": "arrival", "request_id": 1}, "is missing"),
        ({"type": "arrival", "request_id": 1, "prompt": [], "max_tokens": 1, "arrival_s": 0}, "0 tokens"),
        ({"type": "arrival", "request_id": 1, "prompt": [[0, 10**12]], "max_tokens": 1, "arrival_s": 0}, "tokens"),
        ({"type": "abort", "request_id": 1}, "reason is missing"),
        ({"type": "change", "settings": None}, "expected an object"),
    ],
)
def test_a_wrong_input_is_refused_in_words(item: dict[str, object], words: str):
    with pytest.raises(TraceError, match=words):
        parse_line(json.dumps({"step": STEP, "inputs": [item]}).encode())


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"step": NaN}', b"[" * 100_000, b'{"a":' * 100_000, b'{"end": 1}'],
)
def test_lines_that_are_none_are_refused(line: bytes):
    with pytest.raises(TraceError):
        parse_line(line)
