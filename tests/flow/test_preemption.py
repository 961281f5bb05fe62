"""Preemption by recompute: the latest arrival gives way, keeps its answer, and nobody runs in circles."""

from __future__ import annotations

import itertools

import pytest

from engine.telemetry.record import WaitReason
from tests.engine_driver import Driver
from tests.symbolic_runner import answer

POLICIES = ("static", "decode_first", "prefill_first", "mixed")


def tight(**more: object) -> Driver:
    """Room for one and a half of the requests below: 8 tokens of prompt, 16 of answer, 6 blocks each."""
    settings = {"block_size": 4, "num_blocks": 8, "max_num_seqs": 4, "prefix_caching": False}
    return Driver(**(settings | more))  # type: ignore[arg-type]


def assert_right(driver: Driver) -> None:
    for request in driver.requests:
        assert request.output_token_ids == answer(request.prompt_token_ids, request.max_tokens, request.seed)
        assert request.finish_reason == "length"


def test_the_latest_arrival_gives_way_and_the_record_says_for_whom() -> None:
    driver = tight()
    first, second = driver.one(8, 16), driver.one(8, 16)
    driver.run()
    assert driver.events("preempted") == [
        (
            second.request_id,
            {
                "for_request": first.request_id,
                "lost_tokens": 16,
                "freed_blocks": 4,
                "available_before": 0,
                "available_after": 4,
            },
        )
    ]
    assert (first.num_preemptions, second.num_preemptions) == (0, 1)
    assert driver.steps_with(second)[-1] > driver.steps_with(first)[-1]
    assert driver.records[-1].num_preemptions == 1
    assert_right(driver)


def test_it_comes_back_only_when_there_is_room_to_stay() -> None:
    driver = tight()
    first, second = driver.one(8, 16), driver.one(8, 16)
    while not second.num_preemptions:
        driver.steps(1)
    wait = driver.wait(second)
    assert wait is not None
    assert (wait.reason, wait.behind) == (WaitReason.NO_BLOCKS, first.request_id)
    while first.finish_reason is None:
        driver.steps(1)
        wait = driver.wait(second)
        assert wait is None or wait.reason == WaitReason.NO_BLOCKS
        assert second.num_computed_tokens == 0
    driver.run()
    assert_right(driver)


def test_tokens_that_were_sent_stay_sent_and_none_comes_twice() -> None:
    driver = tight()
    seen: list[int] = []
    driver.one(8, 16)
    second = driver.one(8, 16, completes_stop=lambda token: bool(seen.append(token)))
    lengths = []
    while driver.engine.can_work:
        driver.steps(1)
        lengths.append(len(second.output_token_ids))
    assert second.num_preemptions == 1
    assert all(after - before in (0, 1) for before, after in itertools.pairwise(lengths))
    assert seen == second.output_token_ids
    assert_right(driver)


def test_preempted_twice_and_more() -> None:
    driver = tight(num_blocks=14, max_num_seqs=8)
    for _ in range(8):
        driver.one(6, 40)
    driver.run()
    assert max(request.num_preemptions for request in driver.requests) >= 2
    assert driver.requests[0].num_preemptions == 0
    assert_right(driver)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("selection", ["round_robin", "sticky"])
@pytest.mark.parametrize("caching", [True, False])
def test_every_policy_under_pressure(policy: str, selection: str, caching: bool) -> None:
    driver = tight(
        policy=policy, decode_selection=selection, num_blocks=20, prefix_caching=caching, max_num_batched_tokens=12
    )
    for i in range(10):
        driver.one([*range(8), i], 20 + i, seed=i)
    driver.run()
    assert driver.engine.scheduler.num_preemptions > 0
    assert_right(driver)


def test_the_first_of_all_is_never_preempted_and_runs_in_every_step() -> None:
    driver = tight(num_blocks=10, max_num_seqs=8)
    first = driver.one(4, 36)  # all of the pool, in the end
    for _ in range(6):
        driver.one(4, 30)
    driver.run()
    assert driver.steps_with(first) == list(range(1, 37))
    assert first.num_preemptions == 0
    assert_right(driver)


def test_a_later_one_that_finds_no_block_waits_and_keeps_what_it_has() -> None:
    """It would only preempt itself: nobody has come after it."""
    driver = tight(num_blocks=8)
    driver.one(12, 5)  # has all of its 4 blocks from its second step on
    second = driver.one(15, 16)  # has the other 4, and needs a fifth in its third step
    driver.steps(2)
    for _ in range(3):
        driver.steps(1)
        wait = driver.wait(second)
        assert wait is not None
        assert (wait.reason, wait.needed_blocks, wait.available_blocks) == (WaitReason.NO_BLOCKS, 1, 0)
        assert second.num_computed_tokens == 16
    assert driver.requests[0].finish_reason is not None
    driver.run()
    assert second.num_preemptions == 0
    assert_right(driver)


def test_a_request_as_large_as_the_pool_runs_alone() -> None:
    driver = tight()
    whole = driver.one(16, 16)
    assert whole.max_total_tokens == 32
    driver.run()
    assert driver.engine.scheduler.num_preemptions == 0
    assert_right(driver)


def test_no_thrash() -> None:
    """What is computed twice stays in proportion: each preemption is paid for by somebody else's progress."""
    for num_requests, num_blocks in ((4, 10), (8, 16), (12, 30)):
        driver = tight(num_blocks=num_blocks, max_num_seqs=12, max_num_batched_tokens=64)
        for _ in range(num_requests):
            driver.one(8, 24)
        driver.run()
        useful = num_requests * (8 + 24 - 1)  # the last token is never computed
        computed = sum(sum(record.num_tokens.values()) for record in driver.records)
        assert computed < 2 * useful
        assert driver.engine.scheduler.num_preemptions <= 2 * num_requests
        assert_right(driver)


def test_nobody_comes_in_on_blocks_that_a_long_prompt_was_promised() -> None:
    """The prompt is admitted for 20 blocks and takes them chunk by chunk; the next one must not squeeze in between."""
    driver = tight(num_blocks=24, max_num_batched_tokens=16, policy="prefill_first")
    long = driver.one(70, 4)
    driver.steps(1)
    short = driver.one(16, 20)
    driver.run()
    assert driver.engine.scheduler.num_preemptions == 0
    assert driver.steps_with(short)[0] > driver.steps_with(long)[0]
    assert_right(driver)


@pytest.mark.parametrize("policy", ["mixed", "static"])
def test_preempted_in_the_middle_of_its_prompt(policy: str) -> None:
    driver = tight(policy=policy, num_blocks=14, max_num_batched_tokens=5, max_num_seqs=3)
    first, second = driver.one(6, 30), driver.one(43, 4)
    driver.run()
    assert first.num_preemptions == 0
    if policy == "mixed":
        lost = [details["lost_tokens"] for rid, details in driver.events("preempted") if rid == second.request_id]
        assert lost == [40]  # of 43
    assert_right(driver)


def test_with_sharing_it_finds_its_own_blocks_again() -> None:
    driver = tight(prefix_caching=True)
    first, second = driver.one(8, 12), driver.one(8, 16)
    driver.run()
    resumed = [details for rid, details in driver.events("admitted") if details["is_resumed"]]
    assert len(resumed) == 1
    assert resumed[0]["cached_tokens"] > 0
    assert second.num_preemptions == 1
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 0)  # hits of the first admission alone
    assert driver.records[-1].prefix_query_tokens == 16
    assert_right(driver)


def test_a_preempted_member_of_a_static_cohort_waits_for_the_next_one() -> None:
    driver = tight(policy="static", max_num_seqs=2)
    first, second = driver.one(8, 16), driver.one(8, 16)
    inactive = 0
    while first.finish_reason is None:
        record = driver.step()
        if record is not None and second.num_preemptions:
            assert driver.reason(second) in (WaitReason.NO_BLOCKS, WaitReason.BATCH_CLOSED)
            inactive = max(inactive, record.num_inactive_rows)
    assert inactive == 1
    driver.run()
    assert_right(driver)


def test_aborting_a_preempted_request() -> None:
    driver = tight()
    first, second = driver.one(8, 16), driver.one(8, 16)
    while not second.num_preemptions:
        driver.steps(1)
    before = list(second.output_token_ids)
    assert driver.engine.abort(second.request_id) is second
    driver.run()
    assert (second.finish_reason, second.output_token_ids) == ("abort", before)
    assert first.finish_reason == "length"


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("num_blocks", [9, 11, 14, 20])
def test_families_under_pressure(n: int, caching: bool, num_blocks: int) -> None:
    driver = tight(num_blocks=num_blocks, prefix_caching=caching, max_num_seqs=6, max_num_batched_tokens=16)
    for i in range(3):
        driver.add(9 + i, 12, n=n, seed=10 * i)
    driver.run()
    assert_right(driver)
