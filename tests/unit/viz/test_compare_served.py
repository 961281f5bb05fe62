"""The requests just served, compared: which they are, and that only times and lengths are taken."""

from __future__ import annotations

from dataclasses import replace

from engine.scheduling.sampling_params import SamplingParams
from engine.serving.load import LoadRunner
from engine.serving.service import EngineService
from engine.serving.trace_csv import TraceRow
from engine.telemetry.record import Event, EventKind, StepRecord
from tests.unit.viz.test_page_controls import ask, result, service
from viz.compare import Comparison
from viz.compare_presets import QUESTIONS
from viz.served import SERVED, served_here

__all__ = ["service"]


def serve(service: EngineService, *lengths: tuple[int, int]) -> None:
    for prompt, answer in lengths:
        for stream in service.submit(range(prompt), SamplingParams(max_tokens=answer, ignore_eos=True)):
            assert stream.result(30)


def test_the_requests_just_served_can_be_compared_and_nothing_but_their_lengths_is_taken(
    service: EngineService,
) -> None:
    comparison = Comparison(service, LoadRunner(service, range(9)), False)
    asked = ask(QUESTIONS[1], workload=SERVED)
    assert "no request has been answered here yet" in result(comparison, asked)["error"]
    serve(service, (5, 3), (12, 1))
    words = "2 requests (as they came), prompts of 5 to 12 tokens, answers of 1 to 3 tokens;"
    assert words in result(comparison, asked)["basis"]
    measured = result(comparison, replace(asked, on_real_model=True))
    assert words in measured["basis"]
    assert words in result(comparison, asked)["basis"], "what a comparison sent is not what people sent"


def test_of_the_requests_served_the_last_and_complete_ones_are_taken_with_their_gaps() -> None:
    def came(request_id: int, at_s: float, reason: str = "stop") -> list[Event]:
        finished = {"reason": reason, "num_prompt_tokens": 10 * request_id, "num_output_tokens": request_id}
        return [
            Event(EventKind.ARRIVED, request_id, {"arrival_s": at_s}),
            Event(EventKind.FINISHED, request_id, finished),
        ]

    events = [*came(1, 1000.0), *came(2, 1200.0), *came(3, 1201.5), *came(4, 1202.0, "abort"), *came(5, 1203.0)]
    record = StepRecord(1, 0.0, "mixed", "paged", 8, 4, 64, 16, events=tuple(events))
    spec = served_here([record], 2048, without=frozenset({5}))
    assert spec.trace == (TraceRow(0.0, 20, 2), TraceRow(1.5, 30, 3))
