"""A pool with scattered block tables and one packed pass over it, to run attention of any kind on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from engine.kv.paged_attention import Chunk, DecodeGroup, PagedAttention, table_width
from engine.kv.tensors import KVTensors

HEADS, KV_HEADS, DIM = 6, 2, 16


class Row:
    """One request's segment of a pass: `num_new` tokens behind `num_stored` stored ones."""

    def __init__(self, num_stored: int, num_new: int, num_padding: int = 0) -> None:
        self.num_stored, self.num_new, self.num_padding = num_stored, num_new, num_padding

    @property
    def length(self) -> int:
        return self.num_stored + self.num_new


class Setting:
    """A pool, scattered block tables, keys and values written as earlier passes would have, and one pass."""

    def __init__(self, rows: list[Row], block_size: int, dtype: torch.dtype, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        shuffled = random.Random(seed)
        num_blocks = sum(-(-row.length // block_size) for row in rows) + 3
        self.kv = KVTensors(1, num_blocks, block_size, KV_HEADS, DIM, dtype)
        self.kv.storage[:, :, : num_blocks * KV_HEADS] = torch.nan
        free = list(range(num_blocks))
        shuffled.shuffle(free)
        self.tables = [[free.pop() for _ in range(-(-row.length // block_size))] for row in rows]
        self.kv.clear([block for table in self.tables for block in table])
        self.rows, self.block_size = rows, block_size
        normal = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
        self.q = [normal(row.num_new + row.num_padding, HEADS, DIM) for row in rows]
        self.k = [normal(row.length + row.num_padding, KV_HEADS, DIM) for row in rows]
        self.v = [normal(row.length + row.num_padding, KV_HEADS, DIM) for row in rows]
        for i, row in enumerate(rows):
            slots = self.slots(i, range(row.num_stored), 0)
            rows = self.kv.slot_rows(slots)
            self.kv.write(0, self.k[i][: row.num_stored], self.v[i][: row.num_stored], rows)

    def slots(self, i: int, positions: range, num_padding: int) -> torch.Tensor:
        slots = self.kv.slots(self.tables[i], positions.start, positions.stop) + [self.kv.trash_slot] * num_padding
        return torch.tensor(slots, dtype=torch.int64)

    def table(self, i: int, num_slots: int) -> torch.Tensor:
        width = table_width(num_slots, self.block_size)
        ids = self.tables[i][:width]
        return torch.tensor(ids + [self.kv.null_block] * (width - len(ids)))

    def run(self, order: list[int], kind: Callable[..., Any] = PagedAttention) -> dict[int, torch.Tensor]:
        """One pass over these rows: decode rows first. Answers with what each of them got."""
        decode = [i for i in order if self.rows[i].num_new == 1 and not self.rows[i].num_padding]
        others = [i for i in order if i not in decode]
        longest = max((self.rows[i].length for i in decode), default=0)
        groups = []
        if decode:
            tables = torch.stack([self.table(i, longest) for i in decode])
            groups.append(DecodeGroup(0, tables, torch.tensor([self.rows[i].length for i in decode])))
        first, chunks, where = len(decode), [], {i: slice(n, n + 1) for n, i in enumerate(decode)}
        for i in others:
            row = self.rows[i]
            table = self.table(i, row.length)
            chunks.append(Chunk(first, row.num_stored, row.num_new, row.num_padding, table))
            where[i] = slice(first, first + row.num_new)
            first += row.num_new + row.num_padding
        packed = decode + others
        new = lambda x: torch.cat([x[i][self.rows[i].num_stored :] for i in packed])  # noqa: E731
        slots = [
            self.slots(i, range(self.rows[i].num_stored, self.rows[i].length), self.rows[i].num_padding) for i in packed
        ]
        attend = kind(self.kv, torch.cat(slots), groups, chunks, DIM**-0.5)
        out = attend(0, torch.cat([self.q[i] for i in packed]), new(self.k), new(self.v))
        return {i: out[where[i]] for i in order}
