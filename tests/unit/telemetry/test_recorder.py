"""Recording: whole lines, bounded, and never in the engine's way."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner
from engine.telemetry import recorder as recorder_module
from engine.telemetry.journal import Journal
from engine.telemetry.record import StepRecord
from engine.telemetry.recorder import TraceRecorder
from engine.telemetry.trace_file import load


class Desk:
    """As much of a service as a recorder needs, around an engine that is stepped by hand."""

    def __init__(self) -> None:
        self.begin("one")

    def begin(self, epoch: str) -> None:
        clock = SimulatedClock(5.0)
        self.epoch = epoch
        self.engine = Engine(SimulatedRunner(clock), EngineSettings(), clock)
        self.count = 0

    @property
    def journal(self) -> Journal:
        return self.engine.journal

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "model": "simulated", "device": "none", "step": 3, "queue": [1]}

    def serve(self, max_tokens: int = 4) -> list[StepRecord]:
        self.count += 1
        params = SamplingParams(max_tokens=max_tokens)
        self.engine.add(Request(self.count, (1, 2, 3), params, max_tokens, 0, arrival_s=5.0))
        records = []
        while self.engine.can_work:
            record = self.engine.step()
            assert record is not None
            records.append(record)
        return records


def record_all(desk: Desk, recorder: TraceRecorder, num_requests: int = 1) -> list[StepRecord]:
    records = []
    for _ in range(num_requests):
        desk.count += 1
        desk.engine.add(Request(desk.count, (1, 2, 3), SamplingParams(max_tokens=4), 4, 0, arrival_s=5.0))
        while desk.engine.can_work:
            record = desk.engine.step()
            assert record is not None
            recorder(record)
            records.append(record)
    return records


def test_a_recorded_run_is_read_back(tmp_path: Path):
    desk = Desk()
    recorder = TraceRecorder(desk, tmp_path / "t.jsonl")
    records = record_all(desk, recorder, 3)
    recorder.close()
    trace = load(tmp_path / "t.jsonl")
    assert [record.events for record in trace.records] == [record.events for record in records]
    assert trace.ending == "the recording was ended in order"
    assert trace.header.epoch == "one"
    assert trace.header.model == {"model": "simulated", "device": "none"}
    assert trace.header.settings["num_blocks"] == 512
    assert recorder.stopped is None


def test_each_step_is_in_the_file_without_closing_it(tmp_path: Path):
    desk = Desk()
    recorder = TraceRecorder(desk, tmp_path / "t.jsonl")
    records = record_all(desk, recorder)
    recorder.flush()
    trace = load(tmp_path / "t.jsonl")  # what a crash now would leave
    assert len(trace.steps) == len(records)
    assert not trace.is_cut
    recorder.close()


def test_an_older_file_is_kept_beside(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    path.write_text("the run that crashed")
    recorder = TraceRecorder(Desk(), path)
    recorder.close()
    assert (tmp_path / "t.jsonl.old").read_text() == "the run that crashed"
    assert load(path).steps == ()


def test_after_a_restart_the_new_run_has_a_file_of_its_own(tmp_path: Path):
    desk = Desk()
    recorder = TraceRecorder(desk, tmp_path / "t.jsonl")
    record_all(desk, recorder)
    desk.begin("two")
    record_all(desk, recorder, 2)
    recorder.close()
    first, second = load(tmp_path / "t.jsonl"), load(tmp_path / "t-2.jsonl")
    assert (first.header.epoch, second.header.epoch) == ("one", "two")
    assert len(second.steps) == 2 * len(first.steps)


def test_a_full_disk_ends_the_recording_with_one_line_and_not_the_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    desk = Desk()
    with caplog.at_level(logging.ERROR):
        recorder = TraceRecorder(desk, tmp_path / "t.jsonl", open_file=lambda _: os.open("/dev/full", os.O_WRONLY))
        records = record_all(desk, recorder, 5)
        recorder.close()
    assert len(records) == 20
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    assert recorder.stopped is not None


def test_a_disk_that_fills_in_the_middle_of_a_line_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    desk = Desk()
    recorder = TraceRecorder(desk, tmp_path / "t.jsonl")
    record_all(desk, recorder)
    recorder.flush()
    real = os.write

    def fill_up(fd: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return real(fd, data[:-50])

    monkeypatch.setattr(recorder_module.os, "write", fill_up)
    record_all(desk, recorder)
    recorder.close()
    monkeypatch.undo()
    trace = load(tmp_path / "t.jsonl")
    assert len(trace.steps) == 4
    assert not trace.is_cut


def test_the_file_has_a_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    desk = Desk()
    recorder = TraceRecorder(desk, tmp_path / "t.jsonl", max_bytes=4000)
    record_all(desk, recorder, 10)
    recorder.close()
    trace = load(tmp_path / "t.jsonl")
    assert 0 < len(trace.steps) < 40
    assert "reached its limit" in (trace.ending or "")
    assert (tmp_path / "t.jsonl").stat().st_size < 4200
    assert caplog.text.count("has stopped") == 1


def test_a_disk_that_hangs_holds_up_nobody_and_what_waits_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    desk = Desk()
    monkeypatch.setattr(recorder_module, "MAX_WAITING", 8)
    recorder = TraceRecorder(desk, tmp_path / "t.jsonl")
    hangs, real = threading.Event(), os.write
    monkeypatch.setattr(recorder_module.os, "write", lambda fd, data: hangs.wait(30) and real(fd, data))
    records = record_all(desk, recorder, 10)
    assert len(records) == 40
    assert "too slow" in (recorder.stopped or "")
    assert recorder._waiting.qsize() <= 8
    hangs.set()
    recorder.close()


def test_a_file_that_cannot_be_made_is_said_at_once(tmp_path: Path):
    with pytest.raises(OSError, match=r"t\.jsonl"):
        TraceRecorder(Desk(), tmp_path / "no" / "t.jsonl")
