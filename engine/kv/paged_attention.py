"""Attention that reads keys and values through block tables, for one packed pass of many requests' tokens.

Owns where new keys and values are stored, causality, the scaling, and which stored slots a row may look at. Never
knows requests, policies or weights. The idea is vLLM's PagedAttention (Kwon et al., 2023); on the CPU it is written
with `index_select` and `bmm`, and bitwise independent of company: one row's sums are taken in the same order whatever
else is in the pass, however long the longest neighbour is, and wherever a prompt was cut into chunks.

Letters: N packed rows, R rows of one group, H query heads, Hkv key/value heads, G = H / Hkv query heads that share a
key, D head size, B blocks of a table, T = B * block size slots looked at, M queries of a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from engine.kv.tensors import KVTensors

TILE_QUERIES = 128
"""Queries of a prompt that attend together: large enough for `bmm`, small enough to skip most of the future."""

SUM_SLOTS = 1024
"""Weighted values are summed over at most this many slots by one `bmm`: beyond, its order depends on the length."""


MIN_ROWS = 8
"""Fewest queries in a float32 product on a CPU: MKL has routines of its own for fewer, which add in another order."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows `first_row` to `first_row + R`, one query each. `tables` (R, B) holds block ids; row r sees `lengths[r]`
    slots, its own new token included. Tables are padded with the NULL block to `table_width`."""

    first_row: int
    tables: Tensor
    lengths: Tensor


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one request: `num_tokens` tokens whose first stands at position `start`, then `num_padding`
    rows that nobody wants, which see the same slots as the last token. `table` (B,) covers `start + num_tokens` slots
    and is padded with the NULL block to `table_width`; a chunk of padding alone may see only NULL."""

    first_row: int
    start: int
    num_tokens: int
    num_padding: int
    table: Tensor


def table_width(num_slots: int, block_size: int) -> int:
    """Blocks to look at for `num_slots` slots: at least one, and a whole number of 16 slots.

    Vectorised softmax adds in an order that depends on the width's remainder, and an answer must not.
    """
    width = max(1, -(-num_slots // block_size))
    while width * block_size % 16:
        width += 1
    return width


class DecodeRead(Protocol):
    """How the rows of one decode group read what they may see."""

    rows: slice

    def __call__(self, layer: int, q: Tensor) -> Tensor:
        """q (R, H, D), scaled, of one layer -> (R, H * D)."""


DecodeReader = Callable[[KVTensors, DecodeGroup], DecodeRead]
"""Made once a pass, so once for all layers."""


class PagedAttention:
    """`Attend` for one pass; make a new one for every pass. All index tensors are made once, not once a layer."""

    def __init__(
        self,
        kv: KVTensors,
        slots: Tensor,
        decode: Sequence[DecodeGroup],
        chunks: Sequence[Chunk],
        scale: float,
        in_tiles: bool | None = None,
        decode_reader: DecodeReader | None = None,
    ) -> None:
        """`slots` (N,) are where the rows' keys and values go, see `KVTensors.slot_rows`. `scale` multiplies the
        scores; 1 where the model's query weights hold it already. Chunks are computed `in_tiles` unless on a card.
        `decode_reader`: how decode rows read, see engine.kv.device_attention; by default `GatherRead`."""
        self.kv, self.slot_rows, self.scale = kv, kv.slot_rows(slots), scale
        self._decode = [(decode_reader or GatherRead)(kv, group) for group in decode]
        if not kv.storage.is_cuda if in_tiles is None else in_tiles:
            self._chunks: list[_TileRead | _ChunkRead] = [tile for chunk in chunks for tile in _tiles(kv, chunk)]
        else:
            self._chunks = [_ChunkRead(kv, chunk) for chunk in chunks]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See engine.model.attention.Attend: q (N, H, D), k and v (N, Hkv, D) -> (N, H * D)."""
        self.kv.write(layer, k, v, self.slot_rows)
        if self.scale != 1.0:
            q = q * self.scale
        if len(self._decode) == 1 and not self._chunks:
            return self._decode[0](layer, q)
        out = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])  # (N, H * D)
        reads: list[DecodeRead | _TileRead | _ChunkRead] = [*self._decode, *self._chunks]
        for read in reads:
            out[read.rows] = read(layer, q[read.rows])
        return out


class GatherRead:
    """One query a row: all rows of the group in one `bmm`, padded to the longest."""

    def __init__(self, kv: KVTensors, group: DecodeGroup) -> None:
        num_rows, width = group.tables.shape
        self.rows = slice(group.first_row, group.first_row + num_rows)
        self.num_slots = width * kv.block_size
        self.kv, self.ids = kv, kv.rows_of_both(kv.block_rows(group.tables))  # (2 * R * Hkv * B,)
        slots = torch.arange(self.num_slots, device=group.tables.device)
        hidden = slots >= group.lengths[:, None]  # (R, T)
        mask = _minus_infinity(hidden, kv.storage.dtype)
        self.mask = mask.repeat_interleave(kv.num_kv_heads, 0)[:, None]  # (R * Hkv, 1, T)

    def __call__(self, layer: int, q: Tensor) -> Tensor:
        """See DecodeRead."""
        num_rows, num_heads, head_dim = q.shape
        k, v = self.kv.gather(layer, self.ids, self.num_slots)  # (R * Hkv, T, D)
        query = q.reshape(k.shape[0], -1, head_dim)  # (R * Hkv, G, D)
        scores = torch.bmm(_with_min_rows(query), k.transpose(1, 2))  # (R * Hkv, G, T)
        out = _weighted_sum(torch.softmax(scores.add_(self.mask), dim=-1), v)
        if out.shape[1] > query.shape[1]:
            out = out[:, : query.shape[1]]
        return out.reshape(num_rows, num_heads * head_dim)


class _TileRead:
    """Up to 128 queries of one request. What lies wholly in the future is not even read."""

    def __init__(self, kv: KVTensors, rows: slice, table: Tensor, first_position: int, positions: Tensor) -> None:
        self.rows = rows
        self.num_kv_heads, self.num_slots = kv.num_kv_heads, len(table) * kv.block_size
        self.kv, self.ids = kv, kv.rows_of_both(kv.block_rows(table[None]))  # (2 * Hkv * B,)
        self.first_masked = min(first_position, self.num_slots - 1)
        slots = torch.arange(self.first_masked, self.num_slots, device=table.device)
        self.mask = _minus_infinity(slots > positions[:, None], kv.storage.dtype)  # (M, T - first_masked)

    def __call__(self, layer: int, q: Tensor) -> Tensor:
        num_queries, num_heads, head_dim = q.shape
        k, v = self.kv.gather(layer, self.ids, self.num_slots)  # (Hkv, T, D)
        query = q.view(num_queries, self.num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)  # (Hkv, G, M, D)
        query = query.reshape(self.num_kv_heads, -1, head_dim)  # (Hkv, G * M, D)
        num_products = query.shape[1]
        scores = torch.bmm(_with_min_rows(query), k.transpose(1, 2))  # (Hkv, G * M, T)
        masked = scores[:, :num_products].view(self.num_kv_heads, -1, num_queries, self.num_slots)
        masked[..., self.first_masked :].add_(self.mask)
        out = _weighted_sum(torch.softmax(scores, dim=-1), v)[:, :num_products]  # (Hkv, G * M, D)
        return out.reshape(num_heads, num_queries, head_dim).transpose(0, 1).reshape(num_queries, -1)


def _tiles(kv: KVTensors, chunk: Chunk) -> Iterator[_TileRead]:
    last = max(0, chunk.start + chunk.num_tokens - 1)
    num_rows = chunk.num_tokens + chunk.num_padding
    for first in range(0, num_rows, TILE_QUERIES):
        stop = min(first + TILE_QUERIES, num_rows)
        positions = torch.arange(chunk.start + first, chunk.start + stop, device=chunk.table.device).clamp_(max=last)
        num_slots = min(chunk.start + stop - 1, last) + 1
        rows = slice(chunk.first_row + first, chunk.first_row + stop)
        table = chunk.table[: table_width(num_slots, kv.block_size)]
        yield _TileRead(kv, rows, table, min(chunk.start + first, last), positions)


class _ChunkRead:
    """All queries of a chunk at once, by the fused attention kernel that torch has for the device.

    The right route on a card, where it reads no score from memory and launches one kernel instead of many; on a CPU
    the tiles are faster.
    """

    def __init__(self, kv: KVTensors, chunk: Chunk) -> None:
        self.rows = slice(chunk.first_row, chunk.first_row + chunk.num_tokens + chunk.num_padding)
        self.num_tokens, self.length = chunk.num_tokens, max(1, chunk.start + chunk.num_tokens)
        self.num_slots = len(chunk.table) * kv.block_size
        self.kv, self.ids = kv, kv.rows_of_both(kv.block_rows(chunk.table[None]))  # (2 * Hkv * B,)

    def __call__(self, layer: int, q: Tensor) -> Tensor:
        num_queries, num_heads, _ = q.shape
        k, v = (x[:, : self.length] for x in self.kv.gather(layer, self.ids, self.num_slots))  # (Hkv, T, D)
        group_size = num_heads // k.shape[0]
        k, v = k.repeat_interleave(group_size, 0)[None], v.repeat_interleave(group_size, 0)[None]  # (1, H, T, D)
        query = q.transpose(0, 1)[None]  # (1, H, M, D)
        # Tokens see what stands before them; padding behind them, like the last token, sees everything.
        parts = [query[:, :, : self.num_tokens], query[:, :, self.num_tokens :]]
        out = []
        if self.num_tokens:
            causal = causal_lower_right(self.num_tokens, self.length)
            out.append(F.scaled_dot_product_attention(parts[0], k, v, attn_mask=causal, scale=1.0))
        if self.num_tokens < num_queries:
            out.append(F.scaled_dot_product_attention(parts[1], k, v, scale=1.0))
        return torch.cat(out, dim=2)[0].transpose(0, 1).reshape(num_queries, -1)


def _with_min_rows(query: Tensor) -> Tensor:
    """query (X, M, D), with rows of zeros below where M is fewer than `MIN_ROWS` asks for."""
    missing = MIN_ROWS - query.shape[1]
    if missing <= 0 or query.dtype != torch.float32 or query.is_cuda:
        return query
    return F.pad(query, (0, 0, 0, missing))


def _minus_infinity(where: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(where.shape, dtype=dtype, device=where.device).masked_fill_(where, -torch.inf)


def _weighted_sum(weights: Tensor, v: Tensor) -> Tensor:
    """weights (X, M, T) @ v (X, T, D), summed in an order that does not depend on T."""
    num_slots = v.shape[1]
    if num_slots <= SUM_SLOTS:
        return torch.bmm(weights, v)
    out = torch.bmm(weights[..., :SUM_SLOTS], v[:, :SUM_SLOTS])
    for first in range(SUM_SLOTS, num_slots, SUM_SLOTS):
        out += torch.bmm(weights[..., first : first + SUM_SLOTS], v[:, first : first + SUM_SLOTS])
    return out


class ReferencePagedAttention:
    """The same, as plainly as it can be said: each request gathers its slots and attends with torch's own operator.

    What `PagedAttention` is tested against. Takes the same arguments.
    """

    def __init__(
        self,
        kv: KVTensors,
        slots: Tensor,
        decode: Sequence[DecodeGroup],
        chunks: Sequence[Chunk],
        scale: float,
    ) -> None:
        self.kv, self.slot_rows, self.scale = kv, kv.slot_rows(slots), scale
        self.chunks = list(chunks)
        for group in decode:
            lengths = group.lengths.tolist()
            self.chunks += [Chunk(group.first_row + r, n - 1, 1, 0, group.tables[r]) for r, n in enumerate(lengths)]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See engine.model.attention.Attend."""
        self.kv.write(layer, k, v, self.slot_rows)
        out = torch.empty_like(q)
        for c in self.chunks:
            num_rows, length = c.num_tokens + c.num_padding, max(1, c.start + c.num_tokens)
            rows = slice(c.first_row, c.first_row + num_rows)
            stored_k, stored_v = self._gather(layer, c.table, length)  # (length, Hkv, D)
            may_see = torch.arange(length) <= torch.arange(c.start, c.start + num_rows)[:, None]  # (M, length)
            group_size = q.shape[1] // k.shape[1]
            out[rows] = F.scaled_dot_product_attention(
                q[rows].transpose(0, 1),
                stored_k.repeat_interleave(group_size, 1).transpose(0, 1),
                stored_v.repeat_interleave(group_size, 1).transpose(0, 1),
                attn_mask=may_see.to(q.device),
                scale=self.scale,
            ).transpose(0, 1)
        return out.reshape(q.shape[0], -1)

    def _gather(self, layer: int, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
        heads, size, dim = self.kv.num_kv_heads, self.kv.block_size, self.kv.head_dim
        both = []
        for rows in (self.kv.keys[layer], self.kv.values[layer]):
            blocks = rows.view(-1, heads, size, dim)[table]  # (B, Hkv, S, D)
            both.append(blocks.transpose(1, 2).reshape(-1, heads, dim)[:length])
        return both[0], both[1]
