"""The load runner on a real service (whose runner computes nothing): what is sent, counted, and stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from engine.scheduling.plan import StepOutput, StepPlan
from engine.serving.load import LoadBusy, LoadRunner
from engine.serving.measured_run import MeasuredRun, measure
from engine.serving.service import EngineService
from engine.serving.workload import Arrivals, Workload, WorkloadSpec, generate
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner
from engine.telemetry.figures import figures_of
from tests.http_server import wait_until


class GatedRunner(SimulatedRunner):
    """Answers at once while its gate is open."""

    def __init__(self) -> None:
        super().__init__(SimulatedClock())
        self.gate = threading.Event()
        self.gate.set()

    def run(self, plan: StepPlan) -> StepOutput:
        self.gate.wait(30)
        return super().run(plan)


@pytest.fixture
def service() -> Iterator[EngineService]:
    service = EngineService(GatedRunner(), None, EngineSettings(num_blocks=64, max_num_seqs=4, max_queue=16))
    service.start()
    yield service
    service._runner.gate.set()  # type: ignore[attr-defined]
    service.stop()


def gate(service: EngineService) -> threading.Event:
    runner = service._runner
    assert isinstance(runner, GatedRunner)
    return runner.gate


def at_once(count: int, prompt: int = 8, output: int = 5) -> Workload:
    return generate(WorkloadSpec(num_requests=count, arrivals=Arrivals.AT_ONCE, lengths=((prompt, output),)))


def test_every_request_is_sent_and_answered_in_full(service: EngineService) -> None:
    runner = LoadRunner(service, range(100))
    runner.start(at_once(12), "twelve")
    assert runner.wait(30)
    progress = runner.progress()
    assert (progress.name, progress.total, progress.sent, progress.finished) == ("twelve", 12, 12, 12)
    assert progress.num_output_tokens == 60
    assert not progress.is_running
    assert [metrics.num_output_tokens for metrics in runner.metrics] == [5] * 12
    assert sorted(runner.request_numbers.values()) == list(range(1, 13))


def test_stop_aborts_what_runs_and_waits_and_sends_nothing_more(service: EngineService) -> None:
    gate(service).clear()
    runner = LoadRunner(service, range(100))
    spec = WorkloadSpec(num_requests=500, arrivals=Arrivals.POISSON, rate_per_s=400.0, lengths=((8, 400),))
    runner.start(generate(spec))
    wait_until(lambda: runner.progress().sent >= 8)
    runner.stop()
    gate(service).set()
    assert runner.wait(30)
    progress = runner.progress()
    assert progress.stopped == progress.sent < 500
    assert progress.finished == 0
    wait_until(lambda: service.state()["num_active_blocks"] == 0)
    assert service.state()["queue"] == []


def test_stop_leaves_other_peoples_requests_alone(service: EngineService) -> None:
    from engine.scheduling.sampling_params import SamplingParams

    gate(service).clear()
    (other,) = service.submit([1, 2, 3], SamplingParams(max_tokens=6, temperature=0.0), client="somebody")
    runner = LoadRunner(service, range(100))
    runner.start(at_once(3))
    wait_until(lambda: runner.progress().sent == 3)
    runner.stop()
    gate(service).set()
    assert other.result(30).finish_reason == "length"


def test_refusals_at_the_door_are_counted_with_their_words(service: EngineService) -> None:
    gate(service).clear()
    runner = LoadRunner(service, range(100))
    runner.start(at_once(60))
    wait_until(lambda: runner.progress().sent + runner.progress().refused == 60)
    gate(service).set()
    assert runner.wait(30)
    progress = runner.progress()
    assert progress.refused >= 60 - 16 - 4 - 1
    assert progress.finished == progress.sent
    assert "at most 16 may" in (progress.last_error or "")


def test_a_prompt_that_can_never_fit_is_one_refusal_and_the_rest_go_on(service: EngineService) -> None:
    lengths = ((5000, 5), (8, 5))
    runner = LoadRunner(service, range(100))
    runner.start(generate(WorkloadSpec(num_requests=4, arrivals=Arrivals.AT_ONCE, lengths=lengths)))
    assert runner.wait(30)
    assert (runner.progress().refused, runner.progress().finished) == (2, 2)


def test_a_closed_user_never_has_two_requests_at_once(service: EngineService) -> None:
    most = 0

    def watch(record: object) -> None:
        nonlocal most
        most = max(most, len(record.num_tokens))  # type: ignore[attr-defined]

    service.add_listener(watch)
    spec = WorkloadSpec(num_requests=20, arrivals=Arrivals.CLOSED, num_users=2, lengths=((8, 4), (8, 9)))
    runner = LoadRunner(service, range(100))
    runner.start(generate(spec))
    assert runner.wait(30)
    assert runner.progress().finished == 20
    assert most == 2


def test_only_one_load_at_a_time(service: EngineService) -> None:
    gate(service).clear()
    runner = LoadRunner(service, range(100))
    runner.start(at_once(2))
    with pytest.raises(LoadBusy, match="stop it first"):
        runner.start(at_once(2))
    gate(service).set()
    assert runner.wait(30)
    runner.start(at_once(2))
    assert runner.wait(30)


def test_a_measured_run_starts_empty_counts_from_zero_and_knows_its_requests(service: EngineService) -> None:
    runner = LoadRunner(service, range(100))
    runner.start(at_once(5, prompt=40))  # leaves prefixes in the cache
    assert runner.wait(30)
    run = MeasuredRun()

    async def measured() -> None:
        async for _ in measure(service, runner, at_once(6, prompt=40), {"policy": "static", "kv_layout": "paged"}, run):
            pass

    asyncio.run(measured())
    figures = figures_of(run.records)
    assert run.records[0].step == 1
    assert run.records[0].policy == "static"
    assert figures.num_finished == 6
    assert figures.prefix_hit_rate == 0.0
    assert {request_id for record in run.records for request_id in record.num_tokens} == set(range(1, 7))


def test_a_measured_run_is_never_in_slow_motion_and_never_stops_the_page(
    service: EngineService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`control` waits for the step that runs: called in the event loop, it would stop every answer meanwhile."""
    service.control({"step_delay_s": 0.01})
    delays: list[float] = []
    service.add_listener(lambda record: delays.append(service.state()["step_delay_s"]))
    threads: list[int] = []
    control = service.control
    monkeypatch.setattr(service, "control", lambda changes: threads.append(threading.get_ident()) or control(changes))

    async def measured() -> None:
        async for _ in measure(service, LoadRunner(service, range(100)), at_once(3), {"policy": "static"}, run):
            pass

    run = MeasuredRun()
    asyncio.run(measured())
    assert figures_of(run.records).num_finished == 3
    assert set(delays) == {0.0}
    assert len(threads) == 2
    assert threading.get_ident() not in threads
