"""Prefix sharing and copy-on-write through the whole engine, each answer against the same request alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.kv import prefix_index
from tests.flow import tiny_runs
from tests.flow.tiny_runs import EOS, assert_right, prompt


@pytest.mark.parametrize("bits", [0, 4])
def test_colliding_block_digests(rand: Path, monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    digest = prefix_index.block_digest
    monkeypatch.setattr(prefix_index, "block_digest", lambda p, t: bytes([digest(p, t)[0] % 2**bits]))
    driver = tiny_runs.driver(rand, num_blocks=200)
    for _ in range(2):
        for seed in range(10):
            driver.one(prompt(seed, 40), 4, eos=EOS)
            driver.one(prompt(seed, 32) + prompt(seed + 50, 8), 4, eos=EOS)
        driver.run()
    assert_right(rand, driver.requests)
    assert driver.engine.scheduler.prefix_hit_tokens > 0


@pytest.mark.parametrize("model", ["rand", "hist"])
def test_a_block_after_another_beginning_is_another_block(request: pytest.FixtureRequest, model: str) -> None:
    folder = request.getfixturevalue(model)
    driver = tiny_runs.driver(folder)
    a, b, c, tail = (prompt(seed, 16) for seed in range(4))
    for text, hit in ((a + b + tail, 0), (c + b + tail, 0), (a + c + tail, 16), (a + b + tail, 32), (b + tail, 0)):
        made = driver.one(text, 5, eos=EOS)
        driver.run()
        assert made.num_cached_tokens == hit
    assert_right(folder, driver.requests)


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 47, 48, 49])
def test_prompts_around_whole_blocks_again_and_at_once(rand: Path, length: int) -> None:
    driver = tiny_runs.driver(rand)
    text = prompt(1, length)
    for times in (1, 1, 3):
        for _ in range(times):
            driver.one(text, 4, eos=EOS)
        driver.run()
    assert_right(rand, driver.requests)
    hits = [made.num_cached_tokens for made in driver.requests]
    assert hits == [0] + [(length - 1) // 16 * 16] * 4


@pytest.mark.parametrize("budget", [24, 512])
@pytest.mark.parametrize("policy", ["static", "decode_first", "prefill_first", "mixed"])
def test_a_burst_with_a_common_beginning_finds_only_what_was_written(rand: Path, policy: str, budget: int) -> None:
    driver = tiny_runs.driver(rand, policy=policy, max_num_batched_tokens=budget, num_blocks=100)
    common = prompt(5, 48)
    for seed in range(8):
        driver.one(common + prompt(seed, 3 + seed), 4, eos=EOS)
    driver.run()
    assert_right(rand, driver.requests)


def test_a_preempted_request_meets_its_own_old_blocks(rand: Path) -> None:
    driver = tiny_runs.driver(rand, num_blocks=12)
    common = prompt(6, 32)
    for seed in range(5):
        driver.one(common + prompt(seed, 5), 40, ignore_eos=True)
    driver.run()
    assert driver.engine.scheduler.num_preemptions > 0
    resumed = [details for _, details in driver.events("admitted") if details["is_resumed"]]
    assert any(details["cached_tokens"] > 32 for details in resumed)
    assert_right(rand, driver.requests)


@pytest.mark.parametrize("model", ["rand", "hist"])
def test_no_phantom_hits_while_blocks_are_evicted(request: pytest.FixtureRequest, model: str) -> None:
    """12 blocks, 10 prompts of 4 blocks, 200 requests in random order."""
    folder = request.getfixturevalue(model)
    rng, driver = random.Random(0), tiny_runs.driver(folder, num_blocks=12)
    texts = [prompt(seed, 62) for seed in range(10)]
    for _ in range(100):
        for text in rng.sample(texts, 2):
            driver.one(text, 2, eos=EOS)
        driver.run()
    assert_right(folder, driver.requests)
    assert driver.engine.scheduler.num_evictions > 100
    assert driver.engine.scheduler.prefix_hit_tokens > 0


def test_resuming_from_a_cached_prefix(rand: Path) -> None:
    text = prompt(7, 50)
    for shared in (16, 32, 48):
        driver = tiny_runs.driver(rand)
        driver.one(text[: shared + 1], 1)
        driver.run()
        made = driver.one(text, 8, eos=EOS)
        driver.run()
        assert made.num_cached_tokens == shared
        assert_right(rand, [made])


def test_a_long_prompt_past_the_scaled_rope_chunked_and_cached(rand: Path) -> None:
    driver = tiny_runs.driver(rand, max_num_batched_tokens=32)
    text = prompt(8, 150)
    for _ in range(2):
        driver.one(text, 10, eos=EOS)
        driver.run()
    assert driver.requests[1].num_cached_tokens == 144
    assert_right(rand, driver.requests)


@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize("caching", [True, False])
def test_siblings_each_answer_as_they_would_alone(rand: Path, block_size: int, caching: bool) -> None:
    driver = tiny_runs.driver(rand, block_size=block_size, num_blocks=1024 // block_size, prefix_caching=caching)
    family = driver.add(prompt(9, 20), 20, n=3, seed=40, temperature=1.0, ignore_eos=True)
    driver.run()
    assert_right(rand, family)
    assert len({tuple(member.output_token_ids) for member in family}) == 3
    if block_size > 1:
        assert driver.events("copied")
    assert [member.num_cached_tokens for member in family] == [0, 19, 19]


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_sibling_that_leaves_takes_nothing_along(rand: Path, leaver: int) -> None:
    driver = tiny_runs.driver(rand)
    family = driver.add(prompt(9, 20), 30, n=3, seed=40, temperature=1.0, ignore_eos=True)
    while len(family[leaver].output_token_ids) < 2:
        driver.steps(1)
    driver.engine.abort(family[leaver].request_id)
    driver.run()
    assert_right(rand, [member for member in family if member.request_id != leaver])


def test_three_families_of_four_at_once_give_every_block_back(rand: Path) -> None:
    driver = tiny_runs.driver(rand, num_blocks=40, max_num_seqs=12)
    for i in range(3):
        driver.add(prompt(20 + i, 20), 40, n=4, seed=100 * i, temperature=1.0, ignore_eos=True)
    driver.run()
    assert_right(rand, driver.requests)
    kv = driver.engine.scheduler.kv
    assert kv.num_free_blocks + kv.num_cached_blocks == 40


def test_equal_prompts_with_other_seeds_do_not_write_into_each_other(rand: Path) -> None:
    driver = tiny_runs.driver(rand)
    for seed in range(3):
        driver.one(prompt(9, 20), 20, seed=seed, temperature=1.0, ignore_eos=True)
    driver.run()
    assert_right(rand, driver.requests)


def test_blocks_of_a_poisoned_request_are_clean_for_the_next(poison: Path) -> None:
    driver = tiny_runs.driver(poison, num_blocks=12, prefix_caching=False)
    clean = [[token for token in prompt(seed, 30) if token != 37] for seed in range(10)]
    bad = driver.one([*clean[0][:20], 37, *clean[0][20:]], 4)  # 37 is "!"
    driver.run()
    assert bad.finish_reason == "error"
    for text in clean:
        driver.one(text, 4, eos=EOS)
    driver.run()
    assert_right(poison, driver.requests[1:])


def test_a_poisoned_request_among_good_ones_fails_alone(poison: Path) -> None:
    driver = tiny_runs.driver(poison)
    texts = [[token for token in prompt(seed, 20) if token != 37] for seed in range(4)]
    bad = driver.one([*texts[0], 37], 4)
    for text in texts:
        driver.one(text, 6, eos=EOS)
    driver.run()
    assert bad.finish_reason == "error"
    assert "NaN" in (bad.error or "")
    assert bad.output_token_ids == []
    assert_right(poison, driver.requests[1:])


def test_padding_and_inactive_slots_leave_the_first_block_alone(rand: Path) -> None:
    """A padded static batch while block 0 belongs to a live request."""
    driver = tiny_runs.driver(rand, policy="static", max_num_seqs=4, num_blocks=20)
    for length, answer in ((16, 12), (3, 2), (7, 12)):
        driver.one(prompt(length, length), answer, ignore_eos=True)
    record = driver.steps(1)
    while not record[0].num_tokens:
        driver.clock.advance(0.05)
        record = driver.steps(1)
    assert any(0 in table for table in driver.map.tables.values())
    assert record[0].padding
    driver.run()
    assert driver.records[-2].num_inactive_rows > 0
    assert_right(rand, driver.requests)


def test_another_model_knows_nothing_of_the_first_ones_prefixes(rand: Path, hist: Path) -> None:
    for folder in (rand, hist):
        driver = tiny_runs.driver(folder)
        made = driver.one(prompt(3, 40), 5, eos=EOS)
        driver.run()
        assert made.num_cached_tokens == 0
        assert_right(folder, [made])
