"""The size of the pool follows from what is free, what the model needs, and who else is there."""

from __future__ import annotations

import pytest

from engine.kv.pool_size import CPU_CAP_BYTES, ModelMemory, blocks_that_fit, check_fits, free_cpu_bytes

GIB = 1 << 30
MODEL = ModelMemory(weight_bytes=2 * GIB, work_bytes=GIB, kv_bytes_per_token=64 * 1024)
MANY = 10**9


def test_what_others_hold_is_not_there_to_take() -> None:
    whole = blocks_that_fit(MODEL, 16, "cuda", 80 * GIB, MANY)
    half = blocks_that_fit(MODEL, 16, "cuda", 40 * GIB, MANY)
    assert half < whole / 2  # the weights are needed either way
    for blocks, free in ((whole, 80 * GIB), (half, 40 * GIB)):
        assert MODEL.pool_bytes(blocks, 16) + MODEL.weight_bytes + MODEL.work_bytes < 0.95 * free


def test_a_step_s_own_memory_is_counted() -> None:
    greedy = ModelMemory(MODEL.weight_bytes, 20 * GIB, MODEL.kv_bytes_per_token)
    less = blocks_that_fit(greedy, 16, "cuda", 80 * GIB, MANY)
    assert MODEL.pool_bytes(blocks_that_fit(MODEL, 16, "cuda", 80 * GIB, MANY) - less, 16) >= 18 * GIB


def test_a_cpu_leaves_most_to_others() -> None:
    blocks = blocks_that_fit(MODEL, 16, "cpu", 16 * GIB, MANY)
    assert MODEL.pool_bytes(blocks, 16) <= 4 * GIB
    blocks = blocks_that_fit(MODEL, 16, "cpu", 2000 * GIB, MANY)
    assert MODEL.pool_bytes(blocks, 16) <= CPU_CAP_BYTES


def test_no_more_blocks_than_are_of_use() -> None:
    assert blocks_that_fit(MODEL, 16, "cuda", 80 * GIB, 100) == 100


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_room_is_said_with_the_sizes(device: str) -> None:
    with pytest.raises(MemoryError, match=r"3\.00 GiB.*2\.00 GiB"):
        blocks_that_fit(MODEL, 16, device, 2 * GIB, MANY)


def test_a_pool_that_is_too_large_is_refused_before_it_is_made() -> None:
    check_fits(MODEL, 1000, 16, "cpu", 16 * GIB)
    with pytest.raises(MemoryError, match="--num-blocks"):
        check_fits(MODEL, 1_000_000, 16, "cpu", 16 * GIB)


def test_free_memory_is_known_here() -> None:
    assert 64 << 20 < free_cpu_bytes() < 1 << 50
