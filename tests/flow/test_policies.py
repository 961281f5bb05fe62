"""Policies at work: the contract's numbers, whose turn it is, and why the others wait."""

from __future__ import annotations

import itertools

import pytest

from engine.scheduling.request import Request
from engine.telemetry.record import WaitReason
from tests.engine_driver import Driver, wait_of
from tests.symbolic_runner import answer

LENGTHS = (16, 4, 4, 4, 16, 4, 4, 4)


def gaps(driver: Driver, request: Request) -> list[int]:
    """Steps from each token of a request to its next."""
    steps = driver.steps_with(request)
    return [after - before for before, after in itertools.pairwise(steps)]


def assert_right(driver: Driver) -> None:
    for request in driver.requests:
        assert request.output_token_ids == answer(request.prompt_token_ids, request.max_tokens, request.seed)


# -- the contract's example -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_layout", ["paged", "contiguous"])
@pytest.mark.parametrize(
    ("policy", "steps", "utilization", "mean_finish"), [("static", 32, 0.4375, 15.0), ("mixed", 20, 1.0, 9.5)]
)
def test_the_schedulers_example(
    policy: str, kv_layout: str, steps: int, utilization: float, mean_finish: float
) -> None:
    driver = Driver(policy=policy, kv_layout=kv_layout, max_num_seqs=4)
    for length in LENGTHS:
        driver.one(1, length)
    records = [record for record in driver.run() if record.num_tokens]
    rows = sum(sum(r.num_tokens.values()) + sum(r.padding.values()) + r.num_inactive_rows for r in records)
    finish = [driver.steps_with(request)[-1] - records[0].step + 1 for request in driver.requests]
    assert len(records) == steps
    assert sum(LENGTHS) / rows == utilization
    assert sum(finish) / len(finish) == mean_finish
    assert records[-1].wasted_slot_steps == rows - sum(LENGTHS)
    assert_right(driver)


# -- static -----------------------------------------------------------------------------------------------------


def test_a_cohort_waits_50_ms_for_company_and_takes_all_that_came() -> None:
    driver = Driver(policy="static", max_num_seqs=4)
    first = driver.one(5, 3)
    driver.step()  # at 0 ms
    assert driver.reason(first) == WaitReason.COHORT_FORMING
    assert driver.engine.next_wake_s() == pytest.approx(first.arrival_s + 0.05)
    driver.clock.advance(0.02)
    second = driver.one(6, 3)
    driver.step()  # at 30 ms
    assert driver.reason(first) == driver.reason(second) == WaitReason.COHORT_FORMING
    assert driver.step() is None  # at 40 ms: nothing new
    record = driver.step()  # at 50 ms
    assert record is not None
    assert record.active_prefill == (0, 1)
    late = driver.one(5, 1)
    driver.step()
    assert driver.reason(late) == WaitReason.BATCH_CLOSED
    driver.run()
    assert_right(driver)


def test_a_full_cohort_does_not_wait() -> None:
    driver = Driver(policy="static", max_num_seqs=2)
    for _ in range(3):
        driver.one(5, 2)
    record = driver.step()
    assert record is not None
    assert record.active_prefill == (0, 1)
    assert driver.reason(driver.requests[2]) == WaitReason.BATCH_CLOSED
    assert driver.engine.next_wake_s() is None or driver.engine.scheduler.running
    driver.run()
    assert driver.steps_with(driver.requests[2])[0] > driver.steps_with(driver.requests[0])[-1]


def test_the_next_cohort_starts_when_the_longest_member_ends() -> None:
    driver = Driver(policy="static", max_num_seqs=2)
    long, short, next_one, last = (driver.one(4, n) for n in (9, 2, 1, 1))
    driver.run()
    assert driver.steps_with(next_one) == driver.steps_with(last)
    assert driver.steps_with(next_one)[0] == driver.steps_with(long)[-1] + 1
    assert driver.steps_with(short)[-1] < driver.steps_with(long)[-1]


def test_padding_and_inactive_slots_are_counted() -> None:
    driver = Driver(policy="static", max_num_seqs=3)
    for prompt, length in ((2, 5), (7, 1), (4, 3)):
        driver.one(prompt, length)
    records = [record for record in driver.run() if record.num_tokens]
    assert dict(records[0].padding) == {0: 5, 2: 3}
    assert dict(records[0].num_tokens) == {0: 2, 1: 7, 2: 4}
    assert [record.num_inactive_rows for record in records] == [0, 1, 1, 2, 2]
    assert records[-1].wasted_slot_steps == 8 + 6
    assert_right(driver)


@pytest.mark.parametrize("budget", [4, 7, 512])
def test_members_of_a_cohort_get_their_first_token_together(budget: int) -> None:
    driver = Driver(policy="static", max_num_seqs=4, max_num_batched_tokens=budget)
    for prompt in (1, 30, 17, 2):
        driver.one(prompt, 2)
    driver.run()
    assert len({driver.steps_with(request)[0] for request in driver.requests}) == 1
    assert_right(driver)


@pytest.mark.parametrize("kv_layout", ["paged", "contiguous"])
def test_when_a_members_memory_comes_back(kv_layout: str) -> None:
    driver = Driver(policy="static", kv_layout=kv_layout, max_num_seqs=2, block_size=4, prefix_caching=False)
    driver.one(4, 1)
    driver.one(4, 4)
    record = driver.steps(1)[0]
    paged, contiguous = 1, 2 + 2  # the other's one block; both reservations of 4 + max_tokens
    assert record.num_active_blocks == {"paged": paged, "contiguous": contiguous - 0}[kv_layout]
    assert (0 in driver.map.tables) == (kv_layout == "contiguous")
    driver.run()
    assert 0 not in driver.map.tables


def test_an_aborted_members_run_is_free_at_once() -> None:
    driver = Driver(policy="static", kv_layout="contiguous", max_num_seqs=2, block_size=4)
    driver.one(4, 4)
    driver.one(4, 8)
    driver.steps(2)
    driver.engine.abort(0)
    assert driver.engine.scheduler.kv.num_active_blocks == 3
    driver.run()


def test_kept_runs_come_back_when_the_policy_changes() -> None:
    driver = Driver(policy="static", kv_layout="contiguous", max_num_seqs=2, block_size=4)
    driver.one(4, 1)
    driver.one(4, 8)
    driver.steps(2)
    assert driver.engine.scheduler.kv.num_active_blocks == 2 + 3
    driver.engine.change({"policy": "mixed"})
    assert driver.engine.scheduler.kv.num_active_blocks == 3
    driver.run()


def test_switching_to_static_closes_the_batch_that_runs() -> None:
    driver = Driver(max_num_seqs=3)
    first, second = driver.one(4, 6), driver.one(4, 3)
    driver.steps(2)
    driver.engine.change({"policy": "static"})
    late = driver.one(4, 2)
    record = driver.steps(1)[0]
    assert driver.reason(late) == WaitReason.BATCH_CLOSED
    assert record.num_inactive_rows == 0
    record = driver.steps(1)[0]
    assert record.num_inactive_rows == 1  # two slots, one of them left
    driver.run()
    assert driver.steps_with(late)[0] > driver.steps_with(first)[-1] > driver.steps_with(second)[-1]
    assert_right(driver)


# -- continuous -------------------------------------------------------------------------------------------------


def test_mixed_decodes_go_on_beside_a_long_prompt() -> None:
    """A 1500-token prompt and ten more behind it, 64 tokens a step: no decode waits, and every prompt gets on."""
    driver = Driver(max_num_seqs=16, max_num_batched_tokens=64, num_blocks=400)
    decode = driver.one(3, 100)
    driver.steps(2)
    long = driver.one(1500, 2)
    others = [driver.one(20, 3) for _ in range(10)]
    driver.run()
    assert set(gaps(driver, decode)) == {1}
    chunks = [record.num_tokens[long.request_id] for record in driver.records if long.request_id in record.num_tokens]
    assert chunks[:23] == [63] * 23
    assert max(driver.steps_with(request)[0] for request in others) < 60
    assert_right(driver)


def test_mixed_fills_the_budget_with_several_prompts() -> None:
    driver = Driver(max_num_batched_tokens=16)
    for _ in range(3):
        driver.one(6, 2)
    record = driver.steps(1)[0]
    assert dict(record.num_tokens) == {0: 6, 1: 6, 2: 4}
    record = driver.steps(1)[0]
    assert dict(record.num_tokens) == {0: 1, 1: 1, 2: 2}
    driver.run()
    assert_right(driver)


@pytest.mark.parametrize("policy", ["prefill_first", "decode_first"])
def test_round_robin_lets_nobody_wait_more_than_two_steps(policy: str) -> None:
    driver = Driver(policy=policy, max_num_seqs=4, num_blocks=200, prefill_threshold=1)
    for _ in range(6):
        driver.one(2, 200)
    driver.run()
    all_in = max(driver.steps_with(request)[0] for request in driver.requests)
    for request in driver.requests:
        late = [step for step in driver.steps_with(request) if step >= all_in]
        assert max(after - before for before, after in itertools.pairwise(late)) <= 2
    assert_right(driver)


@pytest.mark.parametrize("policy", ["prefill_first", "decode_first"])
def test_sticky_lets_those_behind_wait_for_a_slot(policy: str) -> None:
    driver = Driver(policy=policy, decode_selection="sticky", max_num_seqs=4, num_blocks=200, prefill_threshold=1)
    for _ in range(6):
        driver.one(2, 200)
    driver.run()
    for request in driver.requests[:4]:
        assert set(gaps(driver, request)[4:]) == {1}
    for request in driver.requests[4:]:
        assert max(gaps(driver, request)) > 150
        waited = [record for record in driver.records if request.request_id in record.pending_decode[4:]]
        assert len(waited) > 150
        assert {wait_of(record, request.request_id).reason for record in waited[4:]} == {WaitReason.NO_SLOT}  # type: ignore[union-attr]
    assert_right(driver)


def test_prefill_first_takes_twice_as_many_as_it_decodes() -> None:
    driver = Driver(policy="prefill_first", max_num_seqs=2)
    for _ in range(6):
        driver.one(3, 20)
    driver.steps(4)
    record = driver.records[-1]
    assert (len(record.pending_decode), len(record.active_decode)) == (4, 2)
    assert driver.reason(driver.requests[4]) == WaitReason.NO_SLOT
    driver.run()
    assert_right(driver)


def test_prefill_first_makes_decodes_wait_and_says_so() -> None:
    driver = Driver(policy="prefill_first", max_num_batched_tokens=8)
    decode = driver.one(3, 20)
    driver.steps(2)
    driver.one(30, 2)
    for _ in range(4):
        record = driver.steps(1)[0]
        assert record.active_prefill == (1,)
        assert driver.reason(decode) == WaitReason.PREFILL_TURN
    assert driver.steps(1)[0].active_decode == (0, 1)
    driver.run()
    assert_right(driver)


def test_decode_first_lets_two_wait_and_not_three() -> None:
    driver = Driver(policy="decode_first")
    driver.one(3, 20)
    driver.steps(2)
    second, third = driver.one(3, 2), driver.one(3, 2)
    for _ in range(3):
        assert driver.steps(1)[0].active_decode == (0,)
        assert driver.reason(second) == driver.reason(third) == WaitReason.DECODE_TURN
    driver.one(3, 2)
    record = driver.steps(1)[0]
    assert record.active_prefill == (1, 2, 3)
    assert driver.reason(driver.requests[0]) == WaitReason.PREFILL_TURN
    driver.run()
    assert_right(driver)


def test_decode_first_prefills_when_nothing_can_decode() -> None:
    driver = Driver(policy="decode_first")
    first, second = driver.one(3, 4), driver.one(3, 2)
    driver.run()
    assert driver.steps_with(first)[0] == driver.steps_with(second)[0] == 1
    lonely = driver.one(3, 2)
    driver.run()
    assert lonely.finish_reason == "length"


@pytest.mark.parametrize("policy", ["mixed", "prefill_first", "decode_first"])
def test_one_token_a_step_is_enough(policy: str) -> None:
    driver = Driver(policy=policy, max_num_batched_tokens=1)
    for _ in range(3):
        driver.one(5, 3)
    driver.run()
    assert_right(driver)


@pytest.mark.parametrize("selection", ["round_robin", "sticky"])
@pytest.mark.parametrize("policy", ["static", "decode_first", "prefill_first", "mixed"])
def test_fewer_seats_than_run_already(policy: str, selection: str) -> None:
    driver = Driver(policy=policy, decode_selection=selection, max_num_seqs=6)
    for _ in range(8):
        driver.one(4, 10)
    driver.steps(4)
    driver.engine.change({"max_num_seqs": 2})
    record = driver.steps(1)[0]
    assert len(record.num_tokens) == 2
    left_out = [request_id for request_id in record.pending_decode if request_id not in record.active_decode]
    assert {wait_of(record, request_id).reason for request_id in left_out} == {WaitReason.NO_SLOT}  # type: ignore[union-attr]
    driver.run()
    assert_right(driver)
