"""Workloads on simulated time: the published example, who comes when, and a cost model that is found again."""

from __future__ import annotations

import pytest

from engine.serving.cost_fit import MIN_STEPS, fit_cost_model
from engine.serving.simulate import simulate
from engine.serving.workload import Arrivals, LengthClass, WorkloadError, WorkloadSpec, generate
from engine.settings import EngineSettings
from engine.simulated_runner import CostModel
from engine.telemetry.figures import figures_of
from engine.telemetry.record import EventKind

EXAMPLE = WorkloadSpec(
    num_requests=8, arrivals=Arrivals.AT_ONCE, lengths=tuple((1, n) for n in (16, 4, 4, 4, 16, 4, 4, 4))
)


@pytest.mark.parametrize(
    ("policy", "steps", "utilization", "mean_finish_step"), [("static", 32, 0.4375, 15.0), ("mixed", 20, 1.0, 9.5)]
)
def test_the_scheduler_example(policy: str, steps: int, utilization: float, mean_finish_step: float) -> None:
    run = simulate(generate(EXAMPLE), EngineSettings(policy=policy, max_num_seqs=4))
    figures = figures_of(run.records)
    assert figures.num_steps == steps
    assert figures.utilization == utilization
    assert figures.mean_finish_step == mean_finish_step
    assert figures.output_tokens == 56


def test_answers_have_the_workloads_lengths_whatever_was_asked_for() -> None:
    spec = WorkloadSpec(num_requests=6, arrivals=Arrivals.AT_ONCE, asked_tokens_factor=5.0)
    workload = generate(spec)
    run = simulate(workload, EngineSettings())
    finished = {e.request_id: e.details for r in run.records for e in r.events if e.kind is EventKind.FINISHED}
    arrived = {e.request_id: e.details for r in run.records for e in r.events if e.kind is EventKind.ARRIVED}
    for request in workload.requests:
        assert finished[request.index + 1]["num_output_tokens"] == request.num_output_tokens
        assert finished[request.index + 1]["reason"] == "stop"
        assert arrived[request.index + 1]["max_tokens"] == 5 * request.num_output_tokens


def test_arrivals_come_at_their_time_and_the_clock_passes_over_idle_stretches() -> None:
    spec = WorkloadSpec(num_requests=2, arrivals=Arrivals.BURST, burst_size=1, burst_gap_s=3.0, lengths=((4, 2),))
    run = simulate(generate(spec), EngineSettings(), CostModel(0.01, 0.0, 0.0))
    arrivals = [e.details["arrival_s"] for r in run.records for e in r.events if e.kind is EventKind.ARRIVED]
    assert arrivals == [0.0, 3.0]
    assert figures_of(run.records).makespan_s == pytest.approx(3.02)


def test_a_closed_users_next_request_comes_after_the_answer_and_the_pause() -> None:
    spec = WorkloadSpec(num_requests=3, arrivals=Arrivals.CLOSED, num_users=1, think_s=2.0, lengths=((4, 2),))
    run = simulate(generate(spec), EngineSettings(), CostModel(0.01, 0.0, 0.0))
    arrivals = [e.details["arrival_s"] for r in run.records for e in r.events if e.kind is EventKind.ARRIVED]
    assert arrivals == pytest.approx([0.0, 2.02, 4.04])


def test_what_can_never_fit_is_counted_and_the_others_run() -> None:
    spec = WorkloadSpec(num_requests=2, arrivals=Arrivals.AT_ONCE, lengths=((500, 4), (8, 4)))
    run = simulate(generate(spec), EngineSettings(num_blocks=4))
    assert run.num_refused == 1
    assert figures_of(run.records).num_finished == 1


def test_an_endless_workload_is_refused() -> None:
    with pytest.raises(WorkloadError, match="more than 10 steps"):
        simulate(generate(EXAMPLE), EngineSettings(max_num_seqs=4), max_steps=10)


def test_the_fit_finds_the_cost_model_that_made_the_steps() -> None:
    truth = CostModel(0.012, 0.0007, 3e-7)
    mix = (LengthClass(prompt_tokens=(10, 200), output_tokens=(5, 40)),)
    run = simulate(generate(WorkloadSpec(num_requests=30, mix=mix)), EngineSettings(), truth)
    fit = fit_cost_model(run.records)
    assert fit is not None
    assert fit.model.step_s == pytest.approx(truth.step_s, rel=1e-6)
    assert fit.model.row_s == pytest.approx(truth.row_s, rel=1e-6)
    assert fit.model.context_s == pytest.approx(truth.context_s, rel=1e-6)
    assert fit.median_error < 1e-6


def test_the_fit_is_never_negative_and_needs_enough_steps() -> None:
    run = simulate(generate(EXAMPLE), EngineSettings(max_num_seqs=4), CostModel(0.0, 0.001, 0.0))
    assert len(run.records) < MIN_STEPS
    assert fit_cost_model(run.records) is None
    fit = fit_cost_model(run.records * 3)
    assert fit is not None
    assert min(fit.model.step_s, fit.model.row_s, fit.model.context_s) >= 0
