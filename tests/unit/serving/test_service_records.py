"""What the engine service tells of each step, to whom, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from engine.telemetry.record import StepRecord
from tests.unit.serving.service_runs import PATIENCE_S, greedy, running, until


def test_listeners_get_every_record_and_a_broken_one_is_dropped() -> None:
    records: list[StepRecord] = []
    calls = []

    def broken(record: StepRecord) -> None:
        calls.append(record.step)
        raise RuntimeError("a page that is gone")

    with running() as service:
        service.add_listener(broken)
        service.add_listener(records.append)
        service.submit([1], greedy(5))[0].result(PATIENCE_S)
        until(lambda: len(records) == 5)
    assert calls == [1]
    assert [record.step for record in records] == [1, 2, 3, 4, 5]
    steps = service.steps(since=2)
    assert [record.step for record in steps.records] == [3, 4, 5]


def test_whoever_has_an_answer_finds_it_in_state_and_records_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as service:
        publish, seen = service._streams.publish, []

        def watched(record: StepRecord, sampled: Any) -> None:
            seen.append((record.step, service.state()["step"], service.ring.newest))
            publish(record, sampled)

        monkeypatch.setattr(service._streams, "publish", watched)
        service.submit([1, 2], greedy(3))[0].result(PATIENCE_S)
    assert seen == [(step, step, step) for step in range(1, len(seen) + 1)] != []
