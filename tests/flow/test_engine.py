"""One request's life through the engine, changes of settings under way, and what a record tells of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine
from engine.scheduling.sampling_params import InvalidRequest
from engine.settings import EngineSettings
from engine.simulated_runner import CostModel, SimulatedClock, SimulatedRunner
from tests.engine_driver import Driver
from tests.flow import tiny_runs
from tests.flow.tiny_runs import prompt
from tests.symbolic_runner import SymbolicRunner, answer


def assert_right(driver: Driver) -> None:
    for request in driver.requests:
        assert request.output_token_ids == answer(request.prompt_token_ids, request.max_tokens, request.seed)


# -- a life -----------------------------------------------------------------------------------------------------


def test_the_events_of_a_life_and_their_times() -> None:
    driver = Driver(max_num_batched_tokens=8)
    request = driver.one(20, 3)
    driver.clock.advance(0.5)
    driver.run()
    events = [(event.kind.value, record.step) for record in driver.records for event in record.events]
    assert events == [("arrived", 1), ("admitted", 1), ("first_token", 3), ("finished", 5)]
    (_, arrived), (_, admitted), (_, first), (_, finished) = (
        driver.events(kind)[0] for kind in ("arrived", "admitted", "first_token", "finished")
    )
    assert (arrived["num_prompt_tokens"], arrived["max_tokens"]) == (20, 3)
    assert admitted == {"cached_tokens": 0, "shared_blocks": 0, "queue_s": 0.5, "is_resumed": False}
    assert first["ttft_s"] == pytest.approx(0.52)
    assert {name: finished[name] for name in ("queue_s", "ttft_s", "prefill_s", "decode_s", "e2e_s")} == {
        "queue_s": pytest.approx(0.5),
        "ttft_s": pytest.approx(0.52),
        "prefill_s": pytest.approx(0.02),
        "decode_s": pytest.approx(0.02),
        "e2e_s": pytest.approx(0.54),
    }
    assert (finished["reason"], finished["num_output_tokens"], finished["num_preemptions"]) == ("length", 3, 0)
    assert request.finish_reason == "length"


def test_one_token_is_one_step() -> None:
    driver = Driver()
    request = driver.one(5, 1)
    driver.run()
    assert len(driver.records) == 1
    assert (request.output_token_ids, request.finish_reason) == (answer(request.prompt_token_ids, 1, 0), "length")


def test_an_end_of_sequence_id_ends_it() -> None:
    driver = Driver()
    text = driver.one(5, 1).prompt_token_ids
    tokens = answer(text, 12, 0)
    third = tokens[2]
    stops, goes_on, too_short = (
        driver.one(text, 12, eos=(third,), **more) for more in ({}, {"ignore_eos": True}, {"min_tokens": 4})
    )
    driver.run()
    assert (stops.output_token_ids, stops.finish_reason) == (tokens[: tokens.index(third) + 1], "stop")
    assert (goes_on.output_token_ids, goes_on.finish_reason) == (tokens, "length")
    assert too_short.output_token_ids[:4] == tokens[:4]  # a sampler would not have chosen it either


def test_a_stop_string_ends_it_and_is_asked_for_every_token_in_turn() -> None:
    driver = Driver()
    asked: list[int] = []

    def is_there(token: int) -> bool:
        asked.append(token)
        return len(asked) == 3

    request = driver.one(5, 12, completes_stop=is_there)
    driver.run()
    assert asked == request.output_token_ids == answer(request.prompt_token_ids, 3, 0)
    assert request.finish_reason == "stop"


def test_a_stop_string_test_that_fails_ends_its_request_alone() -> None:
    driver = Driver()

    def broken(token: int) -> bool:
        raise ValueError("secret text")

    bad, good = driver.one(5, 4, completes_stop=broken), driver.one(5, 4)
    driver.run()
    assert bad.finish_reason == "error"
    assert "ValueError" in (bad.error or "")
    assert "secret" not in (bad.error or "")
    assert good.output_token_ids == answer(good.prompt_token_ids, 4, 0)


def test_the_stop_reason_wins_over_the_length() -> None:
    driver = Driver()
    text = driver.one(5, 1).prompt_token_ids
    last = answer(text, 3, 0)[2]
    request = driver.one(text, 3, eos=(last,), min_tokens=3)
    driver.run()
    assert (len(request.output_token_ids), request.finish_reason) == (3, "stop")


# -- what can never run is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_layout", ["paged", "contiguous"])
@pytest.mark.parametrize(("length", "tokens"), [(255, 1), (250, 6), (200, 56), (1, 255)])
def test_up_to_the_context(kv_layout: str, length: int, tokens: int) -> None:
    driver = Driver(kv_layout=kv_layout, max_model_len=256)
    request = driver.one(length, 300)
    driver.run()
    assert (len(request.output_token_ids), request.finish_reason) == (tokens, "length")


@pytest.mark.parametrize(
    ("settings", "length", "words"),
    [
        ({"max_model_len": 256}, 256, "256 tokens.*at most 256.*context.*255"),
        ({"max_model_len": 256}, 400, "400 tokens.*at most 256"),
        ({"num_blocks": 8}, 128, "128 tokens.*at most 128.*pool.*127"),
        ({"num_blocks": 8}, 200, "pool"),
        ({}, 0, "empty"),
    ],
)
def test_what_can_never_run(settings: dict[str, Any], length: int, words: str) -> None:
    driver = Driver(**settings)
    with pytest.raises(InvalidRequest, match=words) as refused:
        driver.add([1] * length)
    assert refused.value.param == "prompt"
    assert not driver.engine.can_work


def test_the_end_of_the_context_on_a_real_model(rand: Path) -> None:
    driver = tiny_runs.driver(rand, max_model_len=64)
    requests = [driver.one(prompt(n, n), 100, ignore_eos=True) for n in (63, 60, 5)]
    driver.run()
    assert [len(request.output_token_ids) for request in requests] == [1, 4, 59]
    tiny_runs.assert_right(rand, requests[:2])


# -- ends from outside ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_layout", ["paged", "contiguous"])
@pytest.mark.parametrize("policy", ["static", "decode_first", "prefill_first", "mixed"])
@pytest.mark.parametrize("steps", [0, 1, 3, 6, 9])
def test_an_abort_in_any_state_frees_all_at_once(policy: str, kv_layout: str, steps: int) -> None:
    """Waiting, in the middle of its prompt, decoding, and after its end; twice; and an id that never was."""
    driver = Driver(policy=policy, kv_layout=kv_layout, max_num_batched_tokens=8, block_size=4, prefix_caching=False)
    driver.clock.advance(1)
    request = driver.one(20, 4)
    request.arrival_s -= 1
    driver.steps(min(steps, 6))
    was_over = request.finish_reason is not None
    assert was_over == (steps >= 6)
    ended = driver.engine.abort(request.request_id)
    assert (ended is None) == was_over
    assert driver.engine.abort(request.request_id) is None
    assert driver.engine.abort(12345) is None
    assert driver.engine.scheduler.kv.num_free_blocks == 512
    record = driver.step()
    assert (record is None) == was_over
    if record is not None:
        assert dict(driver.events("finished"))[request.request_id]["reason"] == "abort"
        assert record.num_free_blocks == 512
    assert not driver.engine.can_work


def test_an_abort_before_the_first_step() -> None:
    driver = Driver()
    request = driver.one(20, 4)
    driver.engine.abort(request.request_id)
    record = driver.step()
    assert record is not None
    assert [event.kind.value for event in record.events] == ["arrived", "finished"]
    assert not driver.engine.can_work


def test_two_requests_cannot_have_one_id() -> None:
    driver = Driver()
    request = driver.one(5)
    with pytest.raises(AssertionError, match="id 0"):
        driver.engine.add(request)


@pytest.mark.parametrize("leader_state", ["queued", "mid prompt", "decoding", "finished"])
@pytest.mark.parametrize("leader_ends", ["abort", "preempt", "error"])
@pytest.mark.parametrize("policy", ["static", "mixed", "prefill_first", "decode_first"])
def test_siblings_outlive_their_leader(policy: str, leader_state: str, leader_ends: str) -> None:
    driver = Driver(policy=policy, block_size=4, max_num_batched_tokens=8, max_num_seqs=4)
    family = driver.add(21, 6, n=3)
    leader = family[0]
    driver.clock.advance(0.1)
    for _ in range({"queued": 0, "mid prompt": 2, "decoding": 5, "finished": 12}[leader_state]):
        driver.step()
    if leader_ends == "abort":
        driver.engine.abort(leader.request_id)
    elif leader_ends == "preempt" and leader.request_id in driver.engine.scheduler.running:
        driver.engine.scheduler._preempt(leader, leader)
    elif leader_ends == "error" and leader.request_id in driver.engine.scheduler.running:
        driver.runner.wrong[leader.request_id] = "NaN"
    driver.run()
    for member in family[1:]:
        assert member.output_token_ids == answer(member.prompt_token_ids, 6, member.seed)
    assert leader.finish_reason is not None


# -- the simulated runner ---------------------------------------------------------------------------------------


def test_simulated_time_is_the_cost_models() -> None:
    clock = SimulatedClock()
    engine = Engine(SimulatedRunner(clock, CostModel(step_s=1.0, row_s=0.1, context_s=0.01)), EngineSettings(), clock)
    driver = Driver.__new__(Driver)
    driver.engine, driver.clock, driver.requests = engine, clock, []
    request = driver.one(4, 2)
    record = engine.step()
    assert record is not None
    assert record.duration_s == record.times.forward_s == pytest.approx(1.0 + 0.4 + 0.16)
    record = engine.step()
    assert record is not None
    assert record.duration_s == pytest.approx(1.0 + 0.1 + 0.05)
    assert request.output_token_ids == [1, 2]


def test_the_wall_clock_plays_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set back by an hour in the middle: no time is negative, and every request has its times."""
    import time

    hours = iter([0, 0, -3600, -7200] + [-7200] * 10_000)
    monkeypatch.setattr(time, "time", lambda: 1e9 + next(hours))
    engine = Engine(SymbolicRunner(), EngineSettings())
    driver = Driver.__new__(Driver)
    driver.engine, driver.clock, driver.requests = engine, time.monotonic, []  # type: ignore[assignment]
    for _ in range(3):
        driver.one(5, 4)
    ended = []
    while engine.can_work:
        record = engine.step()
        assert record is not None
        assert record.time_s >= 0
        assert record.duration_s >= 0
        ended += [event.details for event in record.events if event.kind == "finished"]
    assert len(ended) == 3
    for details in ended:
        assert 0 <= details["queue_s"] <= details["ttft_s"] <= details["e2e_s"]
        assert min(details["prefill_s"], details["decode_s"]) >= 0
