"""A recorded run behind a service's doors: played, paused, scrubbed, and never asked to compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.replay import replay
from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving.replay_service import ReplayService, build_replay_service
from engine.serving.service_errors import EngineDead
from engine.simulated_runner import SimulatedClock
from engine.telemetry.player import LONGEST_IDLE_S, PAUSE_AT_END_S
from engine.telemetry.trace import iter_jsonl
from engine.telemetry.trace_file import TraceReader, load
from tests.flow.traced_runs import SHARING, run, save, trace_text


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("traces") / "t.jsonl", 5, settings=SHARING)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(100.0)


@pytest.fixture
def service(path: Path, clock: SimulatedClock) -> ReplayService:
    return ReplayService(load(path), clock)


def test_it_plays_in_recorded_time(service: ReplayService, clock: SimulatedClock, path: Path):
    records = load(path).records
    assert service.steps().records == ()
    for record in records[:50]:
        clock.now_s = 100.0 + record.time_s + record.duration_s - records[0].time_s + 1e-9
        assert service.steps().newest >= record.step
        assert service.ring.last is not None
        assert service.ring.last.time_s + service.ring.last.duration_s <= record.time_s + record.duration_s + 1e-8


def test_it_plays_at_any_speed(service: ReplayService, clock: SimulatedClock):
    service.control({"speed": 10})
    clock.advance(0.1)
    fast = service.steps().newest
    service.control({"speed": 1, "seek": 0})
    clock.advance(1.0)
    assert service.steps().newest == fast > 20


def test_its_records_and_block_maps_are_those_of_the_run(service: ReplayService, path: Path):
    service.control({"seek": 10_000})
    steps = service.steps()
    assert steps.records == load(path).records
    assert steps.base is not None
    blocks = steps.base.copy()
    for record in steps.records:
        blocks.apply(record)
    state = service.state()
    assert len({block for table in blocks.tables.values() for block in table}) == state["num_active_blocks"]


def test_pause_step_and_slow_motion(service: ReplayService, clock: SimulatedClock):
    assert service.control({"paused": True})["paused"]
    clock.advance(50)
    assert service.steps().newest == 0
    assert service.control({"step": 3})["step"] == 3
    assert service.state()["paused"]
    service.control({"paused": False, "step_delay_s": 0.5})
    clock.advance(1.6)
    assert service.steps().newest == 6
    clock.advance(0.5)
    assert service.steps().newest == 7


def test_scrubbing_forward_goes_on_and_back_starts_a_new_epoch(service: ReplayService, clock: SimulatedClock):
    service.control({"paused": True, "seek": 100})
    epoch = service.state()["epoch"]
    assert service.steps().newest == 100
    service.control({"seek": 120})
    assert service.state()["epoch"] == epoch
    service.control({"seek": 30})
    assert service.state()["epoch"] != epoch
    assert service.steps(since=120, epoch=epoch).base is not None
    assert service.steps().newest == 30


def test_it_begins_again_after_a_moment(service: ReplayService, clock: SimulatedClock):
    service.control({"seek": 1 << 40})
    epoch = service.state()["epoch"]
    clock.advance(PAUSE_AT_END_S - 0.1)
    assert service.state()["epoch"] == epoch
    clock.advance(0.2)
    assert service.state()["epoch"] != epoch
    assert service.state()["replay"]["round"] == 2
    assert service.steps().newest == 0


def test_long_idle_stretches_are_cut(path: Path, clock: SimulatedClock, tmp_path: Path):
    engine, records = run(5, settings=SHARING)
    engine.clock.advance(3600.0)  # type: ignore[attr-defined]
    engine.change({"max_num_seqs": 3})
    last = engine.record_news()
    assert last is not None
    long = tmp_path / "long.jsonl"
    long.write_text(trace_text(engine, [*records, last]))
    service = ReplayService(load(long), clock)
    clock.advance(records[-1].time_s + records[-1].duration_s + LONGEST_IDLE_S + 1)
    assert service.steps().newest == last.step


def test_the_state_follows_the_settings_of_the_run(service: ReplayService, path: Path):
    seen = set()
    for record in load(path).records:
        service.control({"paused": True, "seek": record.step})
        state = service.state()
        assert (state["policy"], state["kv_layout"], state["num_blocks"]) == (
            record.policy,
            record.kv_layout,
            record.num_blocks,
        )
        assert state["pending_prefill"] == list(record.pending_prefill)
        assert set(state["queue"]) <= set(record.pending_prefill)
        seen.add((state["policy"], state["prefix_caching"], state["draining"]))
    assert len(seen) >= 3


def test_a_live_state_has_no_key_that_a_replayed_one_lacks(service: ReplayService):
    from engine.serving.snapshot import snapshot

    engine, records = run(5, settings=SHARING)
    assert set(snapshot(engine, records[-1])) <= set(service.state())


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"policy": "static"}, "policy"),
        ({"paused": 1}, "paused"),
        ({"step": 0}, "step"),
        ({"step": True}, "step"),
        ({"seek": -1}, "seek"),
        ({"speed": 0}, "speed"),
        ({"speed": float("nan")}, "speed"),
        ({"step_delay_s": 100}, "step_delay_s"),
        ({"paused": True, "num_blocks": 3}, "num_blocks"),
    ],
)
def test_what_cannot_be_changed_is_refused_and_nothing_changes(service: ReplayService, changes, param: str):
    before = service.state()
    with pytest.raises(InvalidRequest) as caught:
        service.control(changes)
    assert caught.value.param == param
    assert service.state() == before


def test_nobody_answers(service: ReplayService):
    with pytest.raises(EngineDead, match="recorded run"):
        service.submit([1], SamplingParams())
    service.abort(3)
    service.abort_client("x")
    service.start()
    service.stop()
    assert service.health() is None


def test_listeners_hear_every_record_once_a_round(service: ReplayService):
    heard = []
    service.add_listener(lambda record: heard.append(record.step))
    service.control({"seek": 40})
    service.state()
    assert heard == list(range(1, 41))


def test_what_was_played_is_a_trace_again(service: ReplayService, tmp_path: Path):
    service.control({"paused": True, "seek": 90})
    again = tmp_path / "again.jsonl"
    again.write_text("".join(iter_jsonl(service)))
    with TraceReader(again) as reader:
        differences = [difference for _, difference in replay(reader)]
    assert differences == [None] * 90


def test_an_empty_trace_plays_too(tmp_path: Path, path: Path, clock: SimulatedClock):
    empty = tmp_path / "empty.jsonl"
    empty.write_text(path.read_text().splitlines()[0] + "\n")
    service = build_replay_service(empty)
    clock.advance(100)
    assert service.steps().records == ()
    assert service.state()["num_free_blocks"] == 60
    assert service.control({"seek": 5, "step": 2})["step"] == 0
