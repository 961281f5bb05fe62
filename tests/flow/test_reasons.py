"""Every reason to wait, and the numbers that come with it."""

from __future__ import annotations

from typing import Any

import pytest

from engine.telemetry.record import WaitReason
from tests.engine_driver import Driver
from tests.symbolic_runner import answer


def assert_right(driver: Driver) -> None:
    for request in driver.requests:
        assert request.output_token_ids == answer(request.prompt_token_ids, request.max_tokens, request.seed)


def full_engine(**more: Any) -> Driver:
    return Driver(**({"block_size": 4, "num_blocks": 8, "max_num_seqs": 4, "prefix_caching": False} | more))


def test_reason_no_slot() -> None:
    driver = full_engine(num_blocks=100, max_num_seqs=1)
    driver.one(4, 4)
    second = driver.one(4, 4)
    driver.steps(1)
    assert driver.reason(second) == WaitReason.NO_SLOT


def test_reason_no_blocks_tells_how_many_and_the_next_one_stands_behind() -> None:
    driver = full_engine()
    driver.one(20, 4)
    second, third = driver.one(8, 4), driver.one(1, 1)
    driver.steps(1)
    wait = driver.wait(second)
    assert wait is not None
    assert wait.reason == WaitReason.NO_BLOCKS
    assert (wait.needed_blocks, wait.available_blocks) == (3, 8 - 6)  # the first one needs 6 for its 20 + 1 tokens
    assert (wait.free_blocks, wait.promised_blocks) == (8, 6)  # nothing was written yet: the 6 are promised
    behind = driver.wait(third)
    assert behind is not None
    assert (behind.reason, behind.behind) == (WaitReason.BEHIND, second.request_id)
    driver.run()
    assert_right(driver)


def test_what_cannot_be_given_is_explained_to_the_last_block() -> None:
    """Free and cached, less what the running ones will take and what the request would use itself."""
    seen = set()
    for seed in range(6):
        driver = full_engine(num_blocks=14, max_num_seqs=6, prefix_caching=True)
        driver.one(range(9), 1)  # leaves two cached blocks, with which the next ones begin
        driver.run()
        for number, length in enumerate((12, 1, 5, 9, 3)):
            driver.one([*range(8), *range(20 * number, 20 * number + length + seed)], 12)
        while driver.engine.scheduler.unfinished:
            driver.steps(1)
            for wait in driver.records[-1].waiting.values():
                if wait.reason is not WaitReason.NO_BLOCKS or wait.needed_blocks is None:
                    continue
                assert wait.free_blocks is not None
                kept = (wait.promised_blocks or 0) + (wait.own_prefix_blocks or 0)
                left = wait.free_blocks + (wait.cached_blocks or 0) - kept
                assert wait.available_blocks == max(0, left) < wait.needed_blocks
                names = ("cached_blocks", "promised_blocks", "own_prefix_blocks")
                seen |= {name for name in names if getattr(wait, name)}
    assert seen == {"cached_blocks", "promised_blocks", "own_prefix_blocks"}


def test_reason_no_run_although_enough_blocks_are_free() -> None:
    driver = full_engine(kv_layout="contiguous", num_blocks=10)
    for length in (1, 12, 1, 12):
        driver.one(3, length)
    driver.steps(1)  # the two short ones end: their runs of one block lie apart
    assert driver.records[-1].external_fragmentation == pytest.approx(0.5)
    waiting = driver.one(4, 2)
    driver.steps(1)
    wait = driver.wait(waiting)
    assert wait is not None
    assert (wait.reason, wait.needed_blocks, wait.available_blocks) == (WaitReason.NO_RUN, 2, 1)
    assert driver.records[-1].num_free_blocks == 2
    driver.run()
    assert_right(driver)


def test_reason_no_budget() -> None:
    driver = full_engine(num_blocks=100, max_num_batched_tokens=8)
    driver.one(20, 4)
    second = driver.one(4, 4)
    driver.steps(1)
    assert driver.reason(second) == WaitReason.NO_BUDGET


def test_reason_sibling() -> None:
    driver = full_engine(num_blocks=100)
    first, second = driver.add(10, 4, n=2)
    other = driver.one(4, 2)
    driver.steps(1)
    wait = driver.wait(second)
    assert wait is not None
    assert (wait.reason, wait.behind) == (WaitReason.SIBLING, first.request_id)
    assert other.request_id in driver.records[-1].active_prefill  # who stands behind a sibling need not wait for it
    driver.run()
    assert_right(driver)


def test_reason_draining_and_paused() -> None:
    driver = full_engine(num_blocks=100)
    first = driver.one(4, 8)
    driver.steps(1)
    driver.engine.change({"block_size": 8})
    second = driver.one(4, 4)
    driver.steps(1)
    assert driver.reason(second) == WaitReason.DRAINING
    driver.engine.abort(99)
    third = driver.one(4, 4)
    record = driver.engine.record_news()
    assert record is not None
    driver.take(record)
    assert {driver.reason(request) for request in (first, second, third)} == {WaitReason.PAUSED}
    driver.run()
    assert_right(driver)
