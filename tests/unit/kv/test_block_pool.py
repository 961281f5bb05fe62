"""The block pool: each block in exactly one state, whatever the pool's size."""

from __future__ import annotations

import random

import pytest

from engine.kv.block_pool import BlockPool


def test_blocks_go_from_free_to_active_to_free() -> None:
    pool = BlockPool(3)
    assert [pool.take() for _ in range(3)] == [(0, False), (1, False), (2, False)]
    assert (pool.num_free, pool.num_active, pool.num_cached, pool.num_available) == (0, 3, 0, 0)
    with pytest.raises(IndexError, match="num_available"):
        pool.take()
    assert pool.give_back(1, keep=False)
    assert (pool.num_free, pool.num_active) == (1, 2)
    assert pool.take() == (1, False)


def test_a_shared_block_is_free_when_its_last_owner_leaves() -> None:
    pool = BlockPool(2)
    block, _ = pool.take()
    assert not pool.share(block)
    assert pool.refcount(block) == 2
    assert not pool.give_back(block, keep=True)
    assert pool.num_active == 1
    assert pool.give_back(block, keep=False)
    assert (pool.refcount(block), pool.num_free) == (0, 2)


def test_giving_back_what_nobody_holds_fails() -> None:
    pool = BlockPool(2)
    block, _ = pool.take()
    pool.give_back(block, keep=False)
    with pytest.raises(KeyError):
        pool.give_back(block, keep=False)
    with pytest.raises(KeyError):
        pool.share(block)


def test_a_cached_block_can_come_back_to_life() -> None:
    pool = BlockPool(2)
    block, _ = pool.take()
    pool.give_back(block, keep=True)
    assert pool.is_cached(block)
    assert (pool.num_cached, pool.num_available, pool.num_active) == (1, 2, 0)
    assert pool.share(block)
    assert (pool.num_cached, pool.refcount(block)) == (0, 1)


def test_free_blocks_go_before_cached_ones_and_the_longest_unused_of_these_first() -> None:
    pool = BlockPool(4)
    blocks = [pool.take()[0] for _ in range(3)]
    for block in (blocks[1], blocks[0], blocks[2]):
        pool.give_back(block, keep=True)
    pool.share(blocks[1])
    pool.give_back(blocks[1], keep=True)  # used again: now the newest
    assert [pool.take() for _ in range(4)] == [(3, False), (blocks[0], True), (blocks[2], True), (blocks[1], True)]


def test_a_cached_block_that_cannot_be_found_any_more_is_free() -> None:
    pool = BlockPool(1)
    block, _ = pool.take()
    pool.give_back(block, keep=True)
    pool.drop_cached(block)
    assert (pool.num_free, pool.num_cached) == (1, 0)
    assert pool.take() == (block, False)


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([[0, 1], [1, 2, 2]], "twice"),
        ([[0]], "reference counts"),
        ([[0], [1], [0]], "reference counts"),
    ],
)
def test_check_finds_what_is_wrong_with_the_tables(tables: list[list[int]], words: str) -> None:
    pool = BlockPool(4)
    pool.take(), pool.take()
    pool.check([[0], [1]])
    with pytest.raises(AssertionError, match=words):
        pool.check(tables)


def test_check_finds_a_block_freed_twice_or_lost() -> None:
    pool = BlockPool(3)
    pool._free.append(2)
    with pytest.raises(AssertionError, match="free list twice"):
        pool.check([])
    pool = BlockPool(3)
    pool._cached[1] = None
    with pytest.raises(AssertionError, match="two states"):
        pool.check([])
    pool = BlockPool(3)
    pool._free.pop()
    with pytest.raises(AssertionError, match="no state"):
        pool.check([])


@pytest.mark.parametrize("num_blocks", [1, 2, 7, 200_000])
def test_random_use(num_blocks: int) -> None:
    rng, pool, owners = random.Random(num_blocks), BlockPool(num_blocks), []
    for _ in range(3000):
        if rng.random() < 0.5 and pool.num_available:
            owners.append(pool.take()[0])
        elif owners and rng.random() < 0.3:
            owners.append(pool.share(owners[-1]) or owners[-1])
        elif owners:
            pool.give_back(owners.pop(rng.randrange(len(owners))), keep=rng.random() < 0.5)
        assert pool.num_free + pool.num_cached + pool.num_active == num_blocks
    pool.check([[block] for block in owners])
