"""Nobody starves: a bound on everyone's wait, over random arrivals, under every policy and both selections.

The bound is the work that may rightly come first: a request waits at most for what had arrived before it, and for what
shares the steps with it. Nothing that arrives later may hold it up for longer than its own turn.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.scheduling.request import Request
from tests.engine_driver import Driver

POLICIES = ("static", "decode_first", "prefill_first", "mixed")
QUICK = settings(
    derandomize=True, deadline=None, database=None, max_examples=25, suppress_health_check=list(HealthCheck)
)


def random_traffic(
    driver: Driver, rng: random.Random, count: int, gap_steps: float, max_tokens: int = 30
) -> dict[int, int]:
    """Let `count` requests arrive, `gap_steps` apart on average; answers in which step each arrived."""
    arrived: dict[int, int] = {}
    due = 0.0
    for step in range(100_000):
        while len(arrived) < count and due <= step:
            request = driver.one(rng.randint(1, 60), rng.randint(1, max_tokens))
            arrived[request.request_id] = driver.engine.num_steps
            due += rng.expovariate(1 / gap_steps) if gap_steps else 0
        driver.step()
        if len(arrived) == count and not driver.engine.can_work:
            return arrived
    raise AssertionError("not done")


def steps_of(request: Request, budget: int) -> int:
    """Steps that a request takes when it has the engine to itself, generously."""
    return -(-request.num_prompt_tokens // budget) + request.max_tokens


@pytest.mark.parametrize("selection", ["round_robin", "sticky"])
@pytest.mark.parametrize("policy", POLICIES)
@QUICK
@given(
    seed=st.integers(0, 10**6),
    gap_steps=st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    num_blocks=st.sampled_from([8, 14, 60]),
    max_num_seqs=st.sampled_from([1, 2, 5]),
    kv_layout=st.sampled_from(["paged", "contiguous"]),
)
def test_a_request_waits_at_most_for_those_before_it(
    policy: str, selection: str, seed: int, gap_steps: float, num_blocks: int, max_num_seqs: int, kv_layout: str
) -> None:
    """Even one after the other, those who came first would be done after the sum of their own steps. Those who come
    later take no more than turns: with prefill going first, the prefills of as many as may hold memory at a time."""
    driver = Driver(
        policy=policy,
        decode_selection=selection,
        kv_layout=kv_layout,
        block_size=16,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=16,
    )
    arrived = random_traffic(driver, random.Random(seed), 25, gap_steps)
    before = 0
    for request in driver.requests:
        before += steps_of(request, 16)
        first, last = driver.steps_with(request)[0], driver.steps_with(request)[-1]
        turns = 3 * before + 40  # recomputing after a preemption, padding, prefills of later ones in between
        assert last - arrived[request.request_id] <= turns, f"request {request.request_id} starved"
        assert first <= last


@pytest.mark.parametrize("policy", POLICIES)
def test_a_steady_stream_of_later_arrivals_keeps_nobody_out(policy: str) -> None:
    """Two new short requests a step, more than can be served: the long one in front still gets on and ends."""
    driver = Driver(policy=policy, max_num_seqs=4, max_num_batched_tokens=16, num_blocks=30, block_size=8)
    driver.one(10, 5)
    driver.steps(1) if policy != "static" else None
    long = driver.one(100, 40)
    for _ in range(1500):
        for _ in range(2):
            if len(driver.engine.scheduler.queue) < 50:
                driver.one(6, 6)
        driver.step()
        if long.finish_reason is not None:
            break
    assert long.finish_reason == "length"
    assert driver.engine.num_steps < 400
    later_and_done = [r for r in driver.requests if r.request_id > long.request_id and r.finish_reason]
    if policy != "static":
        assert later_and_done  # nor does the long one keep the others out
    driver.run()


@pytest.mark.parametrize("kv_layout", ["paged", "contiguous"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_large_head_is_not_passed_for_ever(policy: str, kv_layout: str) -> None:
    """It needs nearly all of the pool; small ones arrive all the time and would always fit."""
    driver = Driver(
        policy=policy, kv_layout=kv_layout, max_num_seqs=4, max_num_batched_tokens=64, num_blocks=16, block_size=4
    )
    for _ in range(3):
        driver.one(8, 12)
    driver.clock.advance(0.1)
    driver.steps(2)
    large = driver.one(50, 8)
    for step in range(500):
        if step % 2 == 0:
            driver.one(4, 4)
        driver.step()
        if large.finish_reason is not None:
            break
    assert step < 120
    driver.run()


def test_an_impossible_one_does_not_stand_in_the_way() -> None:
    driver = Driver(num_blocks=8)
    with pytest.raises(ValueError, match="pool"):
        driver.one(200)
    for _ in range(5):
        driver.one(10, 5)
    assert len(driver.run()) <= 10
