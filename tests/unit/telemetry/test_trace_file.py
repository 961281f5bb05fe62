"""Trace files as they come: whole, cut off, packed, broken, hostile."""

from __future__ import annotations

import contextlib
import gzip
import os
from pathlib import Path

import pytest

from engine.telemetry import trace_file
from engine.telemetry.checked import TraceError
from engine.telemetry.trace_file import TraceReader, load
from tests.flow.traced_runs import SHARING, run, trace_text


@pytest.fixture(scope="module")
def text() -> str:
    return trace_text(*run(1, num_requests=6, settings=SHARING))


def put(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_whole_file(tmp_path: Path, text: str):
    trace = load(put(tmp_path, text))
    assert [step.record.step for step in trace.steps] == list(range(1, len(trace.steps) + 1))
    assert len(trace.steps) == text.count("\n") - 1
    assert not trace.is_cut
    assert trace.ending is None


def test_a_packed_file_is_the_same(tmp_path: Path, text: str):
    assert load(put(tmp_path, gzip.compress(text.encode()))) == load(put(tmp_path, text))


def test_an_end_in_order_is_told(tmp_path: Path, text: str):
    assert load(put(tmp_path, text + '{"end":"all is well"}\n')).ending == "all is well"


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_file_that_ends_in_the_middle_of_a_line_is_whole_up_to_that_line(tmp_path: Path, text: str, cut: int):
    whole, broken = load(put(tmp_path, text)), load(put(tmp_path, text[:-cut]))
    assert broken.is_cut
    assert broken.steps == whole.steps[:-1]


def test_a_packed_file_that_was_not_written_to_its_end_gives_what_it_has(tmp_path: Path, text: str):
    whole = load(put(tmp_path, text))
    broken = load(put(tmp_path, gzip.compress(text.encode())[:-200]))
    assert broken.is_cut
    assert 0 < len(broken.steps) < len(whole.steps)
    assert broken.steps == whole.steps[: len(broken.steps)]


def test_a_trace_may_begin_in_the_middle_with_a_base(tmp_path: Path, text: str):
    lines = text.splitlines()
    base = '{"base":{"step":5,"num_blocks":60,"block_size":4}}'
    trace = load(put(tmp_path, "\n".join([lines[0], base, *lines[6:]]) + "\n"))
    assert trace.base is not None
    assert trace.base.step == 5
    assert trace.steps[0].record.step == 6


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda lines: [], "empty"),
        (lambda lines: lines[:1] + lines[2:], "line 2: step 2 stands where step 1 should"),
        (lambda lines: [*lines[:3], lines[2], *lines[3:]], "line 4: step 2 stands where step 3"),
        (lambda lines: [*lines[:3], "nonsense", *lines[3:]], "line 4: it is not JSON"),
        (lambda lines: [*lines[:3], '{"base":{"step":5,"num_blocks":60,"block_size":4}}'], "in the middle"),
        (lambda lines: [lines[0], *2 * ['{"base":{"step":0,"num_blocks":60,"block_size":4}}']], "two bases"),
        (lambda lines: lines[1:], "line 1: this is no trace"),
    ],
)
def test_a_broken_file_is_refused_with_the_line(tmp_path: Path, text: str, spoil, words: str):
    lines = spoil(text.splitlines())
    with pytest.raises(TraceError, match=words):
        load(put(tmp_path, "\n".join(lines) + "\n" if lines else ""))


def test_nothing_is_read_without_bounds(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch):
    path = put(tmp_path, text)
    with pytest.raises(TraceError, match="more than 3 steps"):
        load(path, max_steps=3)
    with pytest.raises(TraceError, match="there is more than"):
        load(path, max_bytes=3000)
    monkeypatch.setattr(trace_file, "MAX_LINE_BYTES", 100)
    with pytest.raises(TraceError, match="line 1: the line is longer"):
        load(path)


def test_a_packed_bomb_is_stopped_at_its_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trace_file, "MAX_LINE_BYTES", 1 << 20)
    with pytest.raises(TraceError, match="longer than 1 MB"):
        load(put(tmp_path, gzip.compress(b" " * (64 << 20))))


@pytest.mark.parametrize("content", [b"\x1f\x8b", b"\x1f\x8bnonsense", os.urandom(500), b"\n", b"PK\x03\x04"])
def test_other_files_are_refused(tmp_path: Path, content: bytes):
    with pytest.raises(TraceError):
        load(put(tmp_path, content))


def test_no_file_and_a_folder_are_refused(tmp_path: Path):
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(TraceError, match="cannot be read"):
            TraceReader(path)


def test_any_flipped_byte_is_refused_or_read_but_never_a_crash(tmp_path: Path, text: str):
    data = bytearray(text.encode()[:6000])
    for position in range(0, len(data), 37):
        spoiled = bytearray(data)
        spoiled[position] ^= 1 << (position % 8)
        path = put(tmp_path, bytes(spoiled))
        with contextlib.suppress(TraceError):
            load(path)
