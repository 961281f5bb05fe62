"""Decode attention that follows the block tables on the card instead of gathering keys and values first.

Owns which operators of torch can, what each needs, and how the pool is handed to them. Never knows graphs or requests.
`PagedAttention` gathers blocks and multiplies them; that works everywhere and is the default. Two operators read the
pool in place; which is fastest is for a measurement to say (`python -m engine.bench gpu-check`).

Both see the pool as pages with one key/value head: a (block, head) row of `KVTensors` is such a page already, so a row
of the batch becomes Hkv sequences whose G query heads share the keys. No second layout, no copy.
Letters: R rows, X = R * Hkv sequences, G query heads of one, B blocks of a table, P pages, S slots of one, D head size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from engine.kv.paged_attention import DecodeGroup, DecodeReader, GatherRead
from engine.kv.tensors import KVTensors

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # before torch 2.10
    varlen_attn: Any = None  # type: ignore[no-redef]

VARLEN_PAGE = 256
"""FlashAttention 2, which torch brings, takes paged keys in multiples of this many slots only."""

CANDIDATES = (("varlen", 256), ("flex", 16), ("flex", 128))
"""Routes worth measuring beside gathering, with the block sizes that they could be fast with."""

FLEX_TILE = 64
"""Keys that FlexAttention's decode kernel takes at once, where a page is no smaller."""


class _InPlaceRead:
    """Tables of (block, head) pages (X, B), and the slots that each sequence sees (X,): int32, as kernels want them."""

    def __init__(self, kv: KVTensors, group: DecodeGroup) -> None:
        num_rows, width = group.tables.shape
        self.kv = kv
        self.rows = slice(group.first_row, group.first_row + num_rows)
        self.num_slots = width * kv.block_size
        self.pages = kv.block_rows(group.tables).view(-1, width).int()
        self.lengths = group.lengths.repeat_interleave(kv.num_kv_heads).int()


class VarlenRead(_InPlaceRead):
    """`varlen_attn` with a block table: FlashAttention over sequences of one query each."""

    def __init__(self, kv: KVTensors, group: DecodeGroup) -> None:
        super().__init__(kv, group)
        self.first_query = torch.arange(len(self.pages) + 1, dtype=torch.int32, device=self.pages.device)
        self.first_key = torch.nn.functional.pad(self.lengths.cumsum(0, dtype=torch.int32), (1, 0))

    def __call__(self, layer: int, q: Tensor) -> Tensor:
        """See DecodeRead."""
        out: Any = varlen_attn(
            q.reshape(len(self.pages), -1, q.shape[-1]),  # (X, G, D)
            self.kv.keys[layer].unsqueeze(2),  # (P, S, 1, D)
            self.kv.values[layer].unsqueeze(2),
            self.first_query,
            self.first_key,
            1,
            self.num_slots,
            scale=1.0,
            enable_gqa=True,
            seqused_k=self.lengths,
            block_table=self.pages,
        )
        return out.reshape(q.shape[0], -1)


class FlexRead(_InPlaceRead):
    """FlexAttention, compiled for each shape, over a block mask that is the block tables themselves.

    All blocks are listed as partial: for full ones the decode kernel divides its work by the pool's size, not by the
    sequence's, and one multiprocessor would read a whole sequence.
    """

    def __init__(self, kv: KVTensors, group: DecodeGroup) -> None:
        super().__init__(kv, group)
        # Imported by who takes it: it brings torch's compiler along, about a second of every start.
        from torch.nn.attention.flex_attention import BlockMask

        self.mask_from, self.page_size = BlockMask.from_kv_blocks, kv.block_size
        size = kv.block_size
        last = (self.lengths - 1) // size  # (X,): where in its table a sequence ends
        last_page = self.pages.gather(1, last.long()[:, None])[:, 0]
        kept = self.lengths - last * size  # (X,): slots seen of that page

        def is_seen(sequence: Tensor, head: Tensor, query: Tensor, slot: Tensor) -> Tensor:
            return (slot // size != last_page[sequence]) | (slot % size < kept[sequence])

        self.is_seen, self.num_pages = is_seen, (last + 1)[:, None, None]

    def __call__(self, layer: int, q: Tensor) -> Tensor:
        """See DecodeRead."""
        query = q.reshape(len(self.pages), 1, -1, q.shape[-1])  # (X, 1, G, D): the group as queries of one head
        pools = (self.kv.keys[layer], self.kv.values[layer])
        keys, values = (pool.view(1, 1, -1, q.shape[-1]) for pool in pools)  # (1, 1, P * S, D), for all X
        mask = self.mask_from(
            self.num_pages,
            self.pages[:, None, None],
            BLOCK_SIZE=(128, self.page_size),
            mask_mod=self.is_seen,
            seq_lengths=(query.shape[2], keys.shape[2]),
            compute_q_blocks=False,  # wanted by a backward pass alone, and as large as rows times pool
        )
        options: Any = {"BLOCK_N": min(FLEX_TILE, self.page_size)}
        out = _compiled_flex()(query, keys, values, block_mask=mask, scale=1.0, kernel_options=options)
        return out.reshape(q.shape[0], -1)


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    """`fullgraph`: past the eighth shape it raises, instead of computing scores against the whole pool."""
    from torch.nn.attention import flex_attention as flex

    return torch.compile(flex.flex_attention, dynamic=False, fullgraph=True)


def reader(route: str) -> DecodeReader:
    """What reads for a route's decode rows."""
    readers: dict[str, DecodeReader] = {"gather": GatherRead, "varlen": VarlenRead, "flex": FlexRead}
    return readers[route]


def why_not(route: str, kv: KVTensors) -> str | None:
    """Why `route` cannot read this pool on its device; None where it can."""
    if route == "gather":
        return None
    if not kv.storage.is_cuda:
        return "it needs a CUDA card"
    size = kv.block_size
    if route == "flex":
        return None if size >= 16 and size & (size - 1) == 0 else f"blocks of {size} are not 16, 32, 64 ... tokens"
    if varlen_attn is None or "block_table" not in inspect.signature(varlen_attn).parameters:
        return f"torch {torch.__version__} has no varlen_attn with block tables; 2.12 has"
    if kv.storage.dtype not in (torch.bfloat16, torch.float16) or torch.cuda.get_device_capability()[0] < 8:
        return "FlashAttention computes in 16 bits, on cards of compute capability 8.0 or more"
    if size % VARLEN_PAGE or kv.head_dim % 8 or kv.head_dim > 256:
        return (
            f"FlashAttention takes blocks of {VARLEN_PAGE} tokens and heads of 8 to 256, not {size} and {kv.head_dim}"
        )
    return None
