"""The pool's tensors: what is written is found, what is cleared is zero, what is copied stops where it should."""

import pytest
import torch

from engine.kv.tensors import KVTensors
from engine.scheduling.plan import BlockCopy

LAYERS, BLOCKS, SIZE, HEADS, DIM = 2, 5, 4, 3, 8


def pool(fill: float | None = None) -> KVTensors:
    kv = KVTensors(LAYERS, BLOCKS, SIZE, HEADS, DIM, torch.float32)
    if fill is not None:
        kv.storage[:, :, : BLOCKS * HEADS] = fill
    return kv


def block(kv: KVTensors, layer: int, block_id: int) -> torch.Tensor:
    """Keys and values of one block: (2, H, S, D)."""
    return kv.storage[layer, :, block_id * HEADS : (block_id + 1) * HEADS]


def test_a_written_token_lies_in_its_slot_under_every_head() -> None:
    kv = pool(fill=0.0)
    k, v = torch.randn(2, HEADS, DIM), torch.randn(2, HEADS, DIM)
    kv.write(1, k, v, kv.slot_rows(torch.tensor([*kv.slots([9, 3], 6, 7), *kv.slots([0], 1, 2)])))
    assert torch.equal(block(kv, 1, 3)[0, :, 2], k[0])
    assert torch.equal(block(kv, 1, 3)[1, :, 2], v[0])
    assert torch.equal(block(kv, 1, 0)[0, :, 1], k[1])
    assert torch.equal(block(kv, 1, 0)[1, :, 1], v[1])
    assert kv.storage[1].count_nonzero() == 2 * 2 * HEADS * DIM
    assert kv.storage[0].count_nonzero() == 0


def test_clearing_makes_zero_of_nan_and_touches_nothing_else() -> None:
    kv = pool(fill=torch.nan)
    kv.clear([4, 1, 2])
    for layer in range(LAYERS):
        for block_id in (1, 2, 4):
            assert block(kv, layer, block_id).eq(0).all()
        for block_id in (0, 3):
            assert block(kv, layer, block_id).isnan().all()


def test_a_copy_takes_the_first_slots_and_leaves_the_rest_zero() -> None:
    kv = pool(fill=torch.nan)
    for layer in range(LAYERS):
        block(kv, layer, 2).copy_(torch.randn(2, HEADS, SIZE, DIM))
    kv.copy([BlockCopy(src=2, dst=0, num_tokens=3)])
    for layer in range(LAYERS):
        assert torch.equal(block(kv, layer, 0)[:, :, :3], block(kv, layer, 2)[:, :, :3])
        assert block(kv, layer, 0)[:, :, 3:].eq(0).all()
        assert block(kv, layer, 2).isfinite().all()


def test_copies_of_one_call_read_what_was_there_before() -> None:
    kv = pool(fill=0.0)
    block(kv, 0, 1).fill_(1.0)
    block(kv, 0, 2).fill_(2.0)
    kv.copy([BlockCopy(1, 2, SIZE), BlockCopy(2, 3, SIZE)])
    assert block(kv, 0, 2).eq(1.0).all()
    assert block(kv, 0, 3).eq(2.0).all()


def test_the_null_block_is_zero_from_the_start() -> None:
    kv = pool()
    assert block(kv, 0, kv.null_block).eq(0).all()
    assert block(kv, 1, kv.trash_block).eq(0).all()


def test_a_pool_that_does_not_fit_says_its_size() -> None:
    with pytest.raises(MemoryError, match=r"KV pool needs \d+\.\d+ GiB on cpu; use fewer"):
        KVTensors(1000, 10**9, 16, 8, 128, torch.float32)


def test_a_pool_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 block"):
        KVTensors(1, 0, 16, 1, 8, torch.float32)
