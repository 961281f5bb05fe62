"""Faults that engines like this one have had, and that no other file here asks for: scheduling, capacity, sampling."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.scheduling.sampling_params import InvalidRequest
from engine.telemetry.record import WaitReason
from tests import tiny_models
from tests.engine_driver import Driver
from tests.flow import tiny_runs
from tests.flow.tiny_runs import EOS, assert_right, prompt
from tests.symbolic_runner import answer

SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.3},
    {"temperature": 0.9, "presence_penalty": 1.0, "frequency_penalty": 0.7},
    {"temperature": 0.0, "repetition_penalty": 1.5},
    {"temperature": 1.0, "top_k": 10**6},
)


# -- capacity ---------------------------------------------------------------------------------------------------


def test_an_answer_that_outgrows_the_pool_ends_with_the_pool() -> None:
    """8 blocks of 16, a prompt of 100, max_tokens 100, nobody else: 28 tokens, and the end is "length"."""
    for kv_layout in ("paged", "contiguous"):
        driver = Driver(num_blocks=8, kv_layout=kv_layout)
        request = driver.one(100, 100)
        driver.run()
        assert (len(request.output_token_ids), request.finish_reason) == (28, "length")
        assert driver.engine.scheduler.num_preemptions == 0


def test_an_impossible_one_among_five_short_ones() -> None:
    driver = Driver(num_blocks=8)
    for i in range(6):
        if i == 2:
            with pytest.raises(InvalidRequest):
                driver.one(200, 5)
        else:
            driver.one(10, 5)
    driver.run()
    assert [request.finish_reason for request in driver.requests] == ["length"] * 5


@pytest.mark.parametrize("policy", ["static", "decode_first", "prefill_first", "mixed"])
@pytest.mark.parametrize("length", [63, 64, 65, 128, 129])
def test_a_prompt_larger_than_the_budget_is_chunked(policy: str, length: int) -> None:
    driver = Driver(policy=policy, max_num_batched_tokens=64)
    request = driver.one(length, 3)
    driver.run()
    assert request.output_token_ids == answer(request.prompt_token_ids, 3, 0)
    chunks = [record.num_tokens[0] for record in driver.records if 0 in record.active_prefill]
    assert (sum(chunks), max(chunks)) == (length, min(length, 64))


def test_chunks_without_sharing_leak_nothing() -> None:
    driver = Driver(prefix_caching=False, max_num_batched_tokens=16, num_blocks=16)
    for _ in range(20):
        driver.one(200, 2)
    driver.run()
    assert driver.engine.scheduler.kv.num_free_blocks == 16
    assert max(record.num_active_blocks for record in driver.records) <= 16


def test_a_hit_that_finds_no_further_block_holds_nothing() -> None:
    """It waits with its hit in sight, and is aborted: the cached blocks stay cached, the free ones free."""
    driver = Driver(num_blocks=10, block_size=4)
    first = driver.one(9, 2)
    driver.run()
    driver.one(20, 12)
    driver.steps(2)
    waiting = driver.one([*first.prompt_token_ids, *range(20)], 3)
    before = driver.engine.scheduler.kv.num_available_blocks
    driver.steps(1)
    assert driver.reason(waiting) == WaitReason.NO_BLOCKS
    assert not driver.engine.scheduler.kv.holds(waiting.request_id)
    driver.engine.abort(waiting.request_id)
    assert driver.engine.scheduler.kv.num_available_blocks == before
    driver.run()


# -- a step that fails ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("x"), torch.OutOfMemoryError("x"), MemoryError("x"), AssertionError()])
@pytest.mark.parametrize("policy", ["static", "decode_first", "prefill_first", "mixed"])
def test_a_step_that_raises_ends_its_requests_and_nobody_elses(policy: str, error: Exception) -> None:
    driver = Driver(policy=policy, max_num_seqs=2, num_blocks=30)
    for _ in range(5):
        driver.one(20, 4)
    driver.clock.advance(0.1)
    driver.steps(2)
    driver.runner.raises = error
    record = driver.steps(1)[0]
    hit = set(record.num_tokens)
    assert hit
    assert driver.engine.last_error is error
    driver.run()
    for request in driver.requests:
        if request.request_id in hit:
            assert request.finish_reason == "error"
            assert type(error).__name__ in (request.error or "")
        else:
            assert request.output_token_ids == answer(request.prompt_token_ids, 4, 0)
    assert len(driver.events("failed")) == 1


def test_a_failed_step_with_copies_and_new_blocks_leaves_clean_memory() -> None:
    driver = Driver(block_size=4, num_blocks=30)
    driver.add(10, 6, n=3)
    driver.steps(1)
    driver.runner.raises = RuntimeError("in the very step that copies")
    driver.steps(1)
    assert driver.runner.plans[-1].copies
    assert {member.finish_reason for member in driver.requests} == {"error"}
    for _ in range(6):
        driver.one(10, 6)
    driver.run()
    for request in driver.requests[3:]:
        assert request.output_token_ids == answer(request.prompt_token_ids, 6, 0)


# -- sampling follows the request -------------------------------------------------------------------------------


def test_parameters_follow_the_request_and_not_its_row(rand: Path) -> None:
    """Different lengths, settings and orders of arrival: each as if alone."""
    for order in range(4):
        rng, driver = random.Random(order), tiny_runs.driver(rand, max_num_seqs=4)
        asked = list(enumerate(SAMPLING))
        rng.shuffle(asked)
        for number, params in asked:
            driver.one(prompt(number, 5 + 3 * number), 3 + 2 * number, seed=number, eos=EOS, **params)
            if rng.random() < 0.5:
                driver.step()
        driver.run()
        assert_right(rand, driver.requests)


@pytest.mark.parametrize("budget", [8, 16, 64, 1024])
def test_a_chunk_that_is_not_the_last_draws_nothing(rand: Path, budget: int) -> None:
    driver = tiny_runs.driver(rand, max_num_batched_tokens=budget)
    request = driver.one(prompt(1, 50), 10, seed=7, temperature=1.0, eos=EOS)
    driver.run()
    assert_right(rand, [request])


@pytest.mark.parametrize("position", [0, 3, 7])
def test_a_seed_is_the_requests_own(rand: Path, position: int) -> None:
    driver = tiny_runs.driver(rand, max_num_seqs=8)
    for number in range(8):
        seed = 7 if number == position else 1000 + number + 10 * position
        driver.one(prompt(1, 20), 12, seed=seed, temperature=1.0, eos=EOS)
    driver.run()
    assert_right(rand, driver.requests)


def test_a_greedy_request_beside_any_neighbour(rand: Path) -> None:
    for params in SAMPLING:
        driver = tiny_runs.driver(rand)
        greedy = driver.one(prompt(1, 20), 12, eos=EOS)
        driver.one(prompt(2, 20), 12, eos=EOS, seed=3, **params)
        driver.run()
        assert_right(rand, [greedy])


def test_the_first_requests_settings_are_not_everybodys(rand: Path) -> None:
    driver = tiny_runs.driver(rand)
    greedy = driver.one(prompt(1, 20), 12, ignore_eos=True)
    wild = driver.one(prompt(1, 20), 12, temperature=2.0, seed=1, ignore_eos=True)
    driver.run()
    assert greedy.output_token_ids != wild.output_token_ids


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-8, 9e-6])
def test_tiny_temperatures_are_greedy(rand: Path, temperature: float) -> None:
    driver = tiny_runs.driver(rand)
    request = driver.one(prompt(1, 20), 8, temperature=temperature, eos=EOS)
    driver.run()
    assert request.output_token_ids == tiny_models.oracle(rand, request.prompt_token_ids, 8)


@pytest.mark.parametrize("temperature", [1e-5, 1e-2])
@pytest.mark.parametrize("top_p", [0.0, 1e-9, 1.0])
def test_small_values_do_no_harm(rand: Path, temperature: float, top_p: float) -> None:
    driver = tiny_runs.driver(rand)
    request = driver.one(prompt(1, 20), 8, temperature=temperature, top_p=top_p, eos=EOS)
    driver.run()
    assert request.output_token_ids == tiny_models.oracle(rand, request.prompt_token_ids, 8)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "inf"},
        {"top_p": 1.5},
        {"top_p": -0.1},
        {"top_k": -2},
        {"min_p": 2},
        {"max_tokens": 0},
        {"n": 0},
        {"repetition_penalty": 0.0},
        {"presence_penalty": 3},
        {"min_tokens": 20, "max_tokens": 10},
        {"stop": ("",)},
        {"stop": ("x",) * 17},
    ],
)
def test_values_that_make_no_sense_are_refused(params: dict[str, Any]) -> None:
    driver = Driver()
    with pytest.raises(InvalidRequest) as refused:
        driver.one(5, **params)
    assert refused.value.param in params


# -- torch's global state ---------------------------------------------------------------------------------------


def test_nothing_global_is_left_changed(rand: Path) -> None:
    before = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), torch.initial_seed())
    state = torch.random.get_rng_state()
    driver = tiny_runs.driver(rand)
    driver.one(prompt(1, 20), 8, temperature=1.0, seed=3)
    driver.run()
    after = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), torch.initial_seed())
    assert before == after
    assert torch.equal(state, torch.random.get_rng_state())


def test_a_second_run_of_one_engine_is_like_the_first(rand: Path) -> None:
    driver = tiny_runs.driver(rand)
    for _ in range(3):
        for number in range(6):
            driver.one(prompt(number, 10 + number), 6, eos=EOS)
        driver.run()
    assert_right(rand, driver.requests)
    first = [request.output_token_ids for request in driver.requests[:6]]
    assert [request.output_token_ids for request in driver.requests[12:]] == first
