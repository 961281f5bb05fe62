"""Pausing, stepping, slow motion, changing settings, stopping, and the death of the engine thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from engine.scheduling.sampling_params import InvalidRequest
from engine.serving.pacing import Pacing
from engine.serving.service_errors import EngineDead, QueueFull
from engine.simulated_runner import SimulatedClock
from tests.symbolic_runner import SymbolicRunner, answer
from tests.unit.serving.service_runs import PATIENCE_S, GatedRunner, greedy, make_service, num_live, running, until

# -- pausing ----------------------------------------------------------------------------------------------------


def test_paused_nothing_runs_but_everything_is_shown() -> None:
    with running() as service:
        assert service.control({"paused": True})["paused"] is True
        stream = service.submit([1], greedy(4))[0]
        until(lambda: num_live(service) == 1)
        step = service.state()["step"]
        service.abort(service.submit([2], greedy(4))[0].request_id)
        until(lambda: service.state()["step"] > step)
        assert service.engine.scheduler.running == {}
        assert service.control({"paused": False})["paused"] is False
        assert list(stream.result(PATIENCE_S).token_ids) == answer([1], 4, 0)


def test_step_by_step() -> None:
    with running() as service:
        service.control({"paused": True})
        stream = service.submit([1], greedy(10))[0]
        until(lambda: num_live(service) == 1)
        for _ in range(3):
            service.control({"step": 1})
            assert len(stream.read(PATIENCE_S).token_ids) == 1
        service.control({"step": 4})
        got: list[int] = []
        while len(got) < 4:
            got += stream.read(PATIENCE_S).token_ids
        service.control({})
        assert got == answer([1], 7, 0)[3:]
        with pytest.raises(TimeoutError):
            stream.read(0.02)
        assert service.state()["paused"]


def test_a_step_pauses_an_engine_that_runs() -> None:
    with running() as service:
        stream = service.submit([1], greedy(400))[0]
        stream.read(PATIENCE_S)
        assert service.control({"step": 1})["paused"]


def test_slow_motion_takes_requests_and_aborts_in_between() -> None:
    with running() as service:
        service.control({"step_delay_s": 10.0})
        first = service.submit([1], greedy(50))[0]
        first.read(PATIENCE_S)
        second = service.submit([2], greedy(50))[0]
        until(lambda: num_live(service) == 2)  # seen long before the next step
        second.cancel()
        assert second.result(PATIENCE_S).finish_reason == "abort"
        assert service.control({"step_delay_s": 0})["step_delay_s"] == 0
        assert list(first.result(PATIENCE_S).token_ids) == answer([1], 50, 0)[1:]


def test_a_pause_that_nobody_watches_ends() -> None:
    clock = SimulatedClock()
    pace = Pacing(clock)
    pace.change({"paused": True})
    clock.advance(59)
    assert not pace.may_step()
    pace.watch()
    clock.advance(59)
    assert not pace.may_step()
    clock.advance(2)
    assert pace.may_step()
    assert not pace.is_paused


def test_allowed_steps_are_counted_and_forgotten_on_a_new_pause() -> None:
    pace = Pacing(SimulatedClock())
    pace.change({"step": 2})
    assert pace.is_paused
    for allowed in (True, True, False):
        assert pace.may_step() is allowed
        pace.stepped()
    pace.change({"step": 5})
    pace.change({"paused": True})
    assert not pace.may_step()
    pace.change({"paused": False})
    pace.stepped()
    pace.change({"paused": True})
    assert not pace.may_step()


# -- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"paused": "yes"}, "paused"),
        ({"step": 0}, "step"),
        ({"step": True}, "step"),
        ({"step": 1001}, "step"),
        ({"step_delay_s": -1}, "step_delay_s"),
        ({"step_delay_s": 11}, "step_delay_s"),
        ({"step_delay_s": float("nan")}, "step_delay_s"),
        ({"policy": "best"}, "policy"),
        ({"block_size": 0}, "block_size"),
        ({"max_model_len": 10**6}, "max_model_len"),
        ({"max_queue": 10**6}, "max_queue"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_control_changes_nothing(changes: dict[str, Any], param: str) -> None:
    with running() as service:
        before = service.state()
        with pytest.raises(InvalidRequest) as refused:
            service.control({"max_num_batched_tokens": 64, "paused": True} | changes)
        assert refused.value.param == param
        assert service.state() == before


def test_all_switches_at_once() -> None:
    wanted = {
        "policy": "decode_first",
        "decode_selection": "sticky",
        "kv_layout": "contiguous",
        "prefix_caching": False,
        "block_size": 8,
        "num_blocks": 100,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 99,
    }
    with running() as service:
        state = service.control(wanted | {"step_delay_s": 0.001})
        assert {name: state[name] for name in wanted} == wanted
        assert service.control({"policy": "continuous"})["policy"] == "mixed"
        assert list(service.submit([1], greedy(3))[0].result(PATIENCE_S).token_ids) == answer([1], 3, 0)


def test_a_pool_change_while_paused_drains_and_then_stands_still() -> None:
    """What runs finishes, what waits stays queued, and not one step more is taken."""
    with running(max_num_seqs=1) as service:
        service.control({"paused": True})
        first, second = (service.submit([i], greedy(6))[0] for i in (1, 2))
        until(lambda: num_live(service) == 2)
        service.control({"step": 2})
        until(lambda: service.state()["pending_decode"])
        state = service.control({"block_size": 4})
        assert state["block_size"] == 4 or state["draining"]
        assert first.result(PATIENCE_S).finish_reason == "length"
        until(lambda: service.state()["block_size"] == 4)
        state = service.state()
        assert (state["draining"], state["paused"], state["queue"]) == (False, True, [second.request_id])
        assert service.engine.scheduler.running == {}
        with pytest.raises(TimeoutError):
            second.read(0.02)
        service.control({"paused": False})
        assert list(second.result(PATIENCE_S).token_ids) == answer([2], 6, 0)


def test_a_prompt_is_checked_against_the_settings_to_come() -> None:
    runner = GatedRunner()
    with running(runner, num_blocks=4) as service:
        runner.gate.clear()
        first = service.submit([1], greedy(5))[0]
        runner.at_gate.wait(PATIENCE_S)
        change = threading.Thread(target=service.control, args=({"num_blocks": 20},))
        change.start()
        runner.gate.set()
        change.join()
        # Whether it is drained already or not: the new pool is the one that counts.
        long = service.submit([2] * 100, greedy(50))[0]
        assert len(long.result(PATIENCE_S).token_ids) == 50
        assert first.result(PATIENCE_S).finish_reason == "length"


def test_what_waits_and_cannot_run_any_more_is_told() -> None:
    with running() as service:
        service.control({"paused": True})
        long = service.submit([1] * 200, greedy(5))[0]
        until(lambda: num_live(service) == 1)
        service.control({"num_blocks": 4, "paused": False})
        result = long.result(PATIENCE_S)
        assert result.finish_reason == "error"
        assert "200 tokens" in (result.error or "")


def test_a_pool_that_memory_does_not_hold() -> None:
    runner = GatedRunner()
    with running(runner) as service:
        runner.refuses_pool = "needs 900 GiB"
        with pytest.raises(InvalidRequest, match="900 GiB"):
            service.control({"num_blocks": 1_000_000})
        assert service.state()["num_blocks"] == 64


# -- failing and dying ------------------------------------------------------------------------------------------


def test_a_step_that_raises_once(caplog: pytest.LogCaptureFixture) -> None:
    runner = GatedRunner()
    with running(runner) as service:
        runner.raises = RuntimeError("no memory for this")
        bad = service.submit([1], greedy(4))[0].result(PATIENCE_S)
        assert bad.finish_reason == "error"
        assert "RuntimeError" in (bad.error or "")
        assert "no memory for this" not in (bad.error or "")  # that is for the log
        assert "no memory for this" in caplog.text
        assert list(service.submit([1], greedy(4))[0].result(PATIENCE_S).token_ids) == answer([1], 4, 0)
        assert service.health() is None


def test_a_request_that_fails_alone() -> None:
    runner = GatedRunner()
    with running(runner) as service:
        service.control({"paused": True})
        streams = [service.submit([i], greedy(4))[0] for i in range(4)]
        runner.wrong[streams[1].request_id] = "its logits are NaN"
        service.control({"paused": False})
        results = [stream.result(PATIENCE_S) for stream in streams]
        assert [result.finish_reason for result in results] == ["length", "error", "length", "length"]
        assert results[1].error == "its logits are NaN"


def test_when_the_engine_thread_dies_everybody_hears_of_it_and_it_can_start_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner = GatedRunner()
    service = make_service(runner, max_num_seqs=2)
    service.start()
    epoch = service.state()["epoch"]
    runner.gate.clear()
    streams = [service.submit([i], greedy(50))[0] for i in range(5)]
    runner.at_gate.wait(PATIENCE_S)
    runner.raises = SystemExit("gone")
    unheard = service.submit([9], greedy(5))[0]
    control: list[BaseException] = []

    def ask() -> None:
        try:
            service.control({"paused": True})
        except EngineDead as error:
            control.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    runner.gate.set()
    for stream in (*streams, unheard):
        result = stream.result(PATIENCE_S)
        assert result.finish_reason == "error"
        assert "SystemExit" in (result.error or "")
    asking.join(PATIENCE_S)
    assert "died" in (service.health() or "")
    assert "died" in service.state()["failure"]
    for refused in (lambda: service.submit([1], greedy()), lambda: service.control({"paused": True})):
        with pytest.raises(EngineDead, match="died"):
            refused()
    service.abort(1)  # into the void
    service.restart()
    assert service.health() is None
    assert service.state()["epoch"] != epoch
    fresh = service.submit([1], greedy(5))[0]
    assert fresh.request_id > unheard.request_id
    assert list(fresh.result(PATIENCE_S).token_ids) == answer([1], 5, 0)
    service.restart()  # does nothing while it lives
    assert service.state()["step"] > 0
    service.stop()


def test_no_stream_is_left_open_when_it_dies_while_others_submit() -> None:
    """Submitting and dying at the same moment: refused, or ended; never silent."""
    for _ in range(20):
        runner = SymbolicRunner()
        service = make_service(runner)
        service.start()
        streams: list[Any] = []

        def client(service: Any = service, streams: list[Any] = streams) -> None:
            for i in range(200):
                try:
                    streams.extend(service.submit([i], greedy(2)))
                except EngineDead:
                    return
                except QueueFull:
                    continue

        threads = [threading.Thread(target=client) for _ in range(3)]
        for thread in threads:
            thread.start()
        runner.raises = KeyboardInterrupt()
        for thread in threads:
            thread.join()
        service.stop()
        for stream in streams:
            assert stream.result(PATIENCE_S).finish_reason in ("length", "error", "abort")


def test_stopping_ends_every_stream_and_tells_of_it() -> None:
    service = make_service()
    service.start()
    service.control({"step_delay_s": 0.01})
    streams = [service.submit([i], greedy(400))[0] for i in range(12)]
    streams[0].read(PATIENCE_S)
    service.stop()
    assert {stream.result(PATIENCE_S).finish_reason for stream in streams} == {"abort"}
    ended = [event for record in service.steps().records for event in record.events if event.kind == "finished"]
    assert {event.request_id for event in ended} == {stream.request_id for stream in streams}
    assert service.engine.scheduler.kv.num_active_blocks == 0
    assert service.health() == "the engine was stopped"
    with pytest.raises(EngineDead, match="stop"):
        service.submit([1], greedy())
    with pytest.raises(EngineDead):
        service.control({"paused": True})
    service.stop()


def test_stopping_a_service_that_never_started() -> None:
    service = make_service()
    service.stop()
    assert service.health() is not None


def test_two_threads_never_run_one_engine() -> None:
    runner = GatedRunner()
    service = make_service(runner)
    service.start()
    thread = service._thread
    service.start()
    assert service._thread is thread
    runner.gate.clear()
    service.submit([1], greedy(5))
    runner.at_gate.wait(PATIENCE_S)
    service.stop(timeout_s=0.01)  # the step goes on
    with pytest.raises(EngineDead, match="busy"):
        service.restart(timeout_s=0.01)
    runner.gate.set()
    assert thread is not None
    thread.join(PATIENCE_S)
    service.restart()
    assert list(service.submit([1], greedy(3))[0].result(PATIENCE_S).token_ids) == answer([1], 3, 0)
    service.stop()
