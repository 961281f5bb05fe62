"""Changes of settings under way: what takes effect at once, what drains first, what waits meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine
from engine.scheduling.sampling_params import InvalidRequest
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner
from engine.telemetry.record import WaitReason
from tests.engine_driver import Driver
from tests.flow import tiny_runs
from tests.flow.tiny_runs import EOS, prompt
from tests.symbolic_runner import answer


def assert_right(driver: Driver) -> None:
    for request in driver.requests:
        assert request.output_token_ids == answer(request.prompt_token_ids, request.max_tokens, request.seed)


# -- settings under way -----------------------------------------------------------------------------------------


def test_a_new_pool_waits_until_the_old_one_is_drained() -> None:
    driver = Driver(block_size=4)
    running = driver.one(8, 5)
    driver.steps(2)
    driver.engine.change({"block_size": 8, "num_blocks": 40})
    waiting = driver.one(8, 3)
    for _ in range(3):
        record = driver.steps(1)[0]
        assert (record.block_size, record.num_blocks) == (4, 512)
        assert driver.reason(waiting) == WaitReason.DRAINING
    assert running.finish_reason == "length"
    record = driver.steps(1)[0]
    assert (record.block_size, record.num_blocks) == (8, 40)
    assert waiting.request_id in record.num_tokens
    driver.run()
    kinds = [event.kind.value for record in driver.records for event in record.events]
    assert kinds.count("draining") == kinds.count("settings") == 1
    assert driver.runner.num_pools == 2
    assert_right(driver)


def test_a_second_change_while_draining_counts_too() -> None:
    driver = Driver(block_size=4)
    driver.one(8, 5)
    driver.steps(1)
    driver.engine.change({"block_size": 8})
    driver.engine.change({"policy": "prefill_first", "num_blocks": 50})
    assert driver.engine.settings.policy == "prefill_first"  # needs no empty pool
    driver.run()
    driver.one(8, 2)
    record = driver.run()[0]
    assert (record.block_size, record.num_blocks, record.policy) == (8, 50, "prefill_first")
    assert_right(driver)


def test_a_change_can_be_taken_back_while_draining() -> None:
    driver = Driver(block_size=4)
    running = driver.one(8, 9)
    driver.steps(1)
    driver.engine.change({"block_size": 8})
    waiting = driver.one(8, 3)
    driver.steps(1)
    driver.engine.change({"block_size": 4})
    record = driver.steps(1)[0]
    assert {running.request_id, waiting.request_id} == set(record.num_tokens)
    driver.run()
    assert driver.runner.num_pools == 1
    assert_right(driver)


def test_a_request_that_only_the_new_pool_can_hold_is_accepted_and_keeps_its_length() -> None:
    driver = Driver(block_size=4, num_blocks=10)
    driver.one(8, 5)
    driver.steps(1)
    driver.engine.change({"num_blocks": 50})
    long = driver.one(60, 80)
    driver.run()
    assert (len(long.output_token_ids), long.finish_reason) == (80, "length")
    assert_right(driver)


def test_what_waits_for_a_pool_that_does_not_come_is_told_so() -> None:
    driver = Driver(block_size=4, num_blocks=10)
    driver.one(8, 5)
    driver.steps(1)
    driver.engine.change({"num_blocks": 50})
    too_long, cut = driver.one(60, 80), driver.one(30, 80)
    driver.engine.change({"num_blocks": 10})
    assert too_long.finish_reason == "error"
    assert "60 tokens" in (too_long.error or "")
    driver.run()
    assert (len(cut.output_token_ids), cut.finish_reason) == (10, "length")


def test_waiting_requests_that_the_new_pool_cannot_hold() -> None:
    driver = Driver(block_size=4, num_blocks=100, max_num_seqs=1)
    driver.one(8, 5)
    too_long, cut, fits = driver.one(60, 5), driver.one(20, 50), driver.one(8, 5)
    driver.steps(1)
    driver.engine.change({"num_blocks": 8})
    driver.run()
    assert too_long.finish_reason == "error"
    assert "60 tokens" in (too_long.error or "")
    assert "at most 32" in (too_long.error or "")
    assert (len(cut.output_token_ids), cut.finish_reason) == (12, "length")
    assert len(fits.output_token_ids) == 5


def test_a_preempted_request_ends_where_the_new_pool_ends() -> None:
    driver = Driver(block_size=4, num_blocks=8, max_num_seqs=4, prefix_caching=False)
    driver.one(8, 16), driver.one(8, 16)
    second = driver.requests[1]
    while not second.num_preemptions:
        driver.steps(1)
    sent = list(second.output_token_ids)
    assert sent
    driver.engine.change({"num_blocks": 4})
    driver.run()
    assert (second.output_token_ids, second.finish_reason, second.error) == (sent, "length", None)


def test_a_pool_that_cannot_be_had_leaves_everything_as_it_was() -> None:
    driver = Driver(block_size=4, num_blocks=20)
    driver.runner.refuses_pool = "needs 900 GiB"
    with pytest.raises(InvalidRequest, match="900 GiB"):
        driver.engine.change({"num_blocks": 1_000_000, "policy": "static"})
    assert driver.engine.settings == EngineSettings(block_size=4, num_blocks=20)
    driver.one(8, 5)
    driver.steps(1)
    driver.engine.change({"num_blocks": 1_000_000})  # can't be known before the pool is drained
    too_long, fits = driver.one(100, 5), driver.one(8, 5)
    driver.run()
    assert "900 GiB" in driver.events("settings")[0][1]["error"]
    assert driver.engine.settings.num_blocks == 20
    assert too_long.finish_reason == "error"
    assert fits.finish_reason == "length"


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "fastest"},
        {"block_size": 0},
        {"num_blocks": -1},
        {"max_num_seqs": True},
        {"nonsense": 1},
        {"step": 2},
    ],
)
def test_a_wrong_change_changes_nothing(changes: dict[str, Any]) -> None:
    driver = Driver()
    with pytest.raises(InvalidRequest) as refused:
        driver.engine.change({"max_num_batched_tokens": 64, **changes})
    assert refused.value.param in changes
    assert driver.engine.settings == EngineSettings()


def test_sharing_switched_off_and_on_while_requests_run(rand: Path) -> None:
    driver = tiny_runs.driver(rand)
    text = prompt(1, 40)
    for step in range(12):
        driver.one(text + prompt(step, 5), 6, eos=EOS)
        driver.step()
        if step % 3 == 2:
            driver.engine.change({"prefix_caching": step % 2 == 0})
    driver.run()
    tiny_runs.assert_right(rand, driver.requests)
    hits = [request.num_cached_tokens for request in driver.requests]
    assert 0 < hits.count(32) < 12


def test_news_while_paused_are_told_without_running_anything() -> None:
    driver = Driver()
    driver.one(5, 5)
    assert driver.engine.record_news() is not None
    assert driver.engine.record_news() is None
    assert driver.engine.scheduler.running == {}


# -- settings themselves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"policy": "static", "max_num_seqs": 9, "max_num_batched_tokens": 8}, "max_num_batched_tokens"),
        ({"num_blocks": 1, "block_size": 1}, "num_blocks"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"prefix_caching": "yes"}, "prefix_caching"),
        ({"kv_layout": "ring"}, "kv_layout"),
        ({"decode_selection": "random"}, "decode_selection"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        EngineSettings(**settings)
    assert refused.value.param == param


@pytest.mark.parametrize("num_blocks", [2, 7, 200_000])
@pytest.mark.parametrize("block_size", [1, 2, 255, 256])
@pytest.mark.parametrize("kv_layout", ["paged", "contiguous"])
def test_sizes_at_the_ends_of_their_ranges(kv_layout: str, block_size: int, num_blocks: int) -> None:
    if num_blocks * block_size > 2000:
        runner = SimulatedRunner(SimulatedClock())  # the symbolic runner's memory would take its time
        engine = Engine(runner, EngineSettings(kv_layout=kv_layout, block_size=block_size, num_blocks=num_blocks))
        assert engine.settings.context_limit == min(8192, block_size * num_blocks)
        return
    driver = Driver(kv_layout=kv_layout, block_size=block_size, num_blocks=num_blocks)
    length = max(1, min(30, block_size * num_blocks - 2))
    for _ in range(3):
        driver.one(length, 5)
    driver.run()
    assert_right(driver)
