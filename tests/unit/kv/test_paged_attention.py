"""Paged attention against its plain form, and every row's independence from its neighbours."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from engine.kv.paged_attention import Chunk, DecodeGroup, PagedAttention, ReferencePagedAttention, table_width
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


MIXED = [Row(0, 1), Row(5, 1), Row(40, 1), Row(0, 7), Row(33, 150), Row(9, 3, 4), Row(200, 1), Row(0, 130, 20)]


@pytest.mark.parametrize("in_tiles", [True, False])
@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
def test_equals_its_plain_form(block_size: int, in_tiles: bool) -> None:
    setting = Setting([*MIXED, Row(0, 0, 3), Row(20, 0, 2)], block_size, torch.float32)
    everyone = list(range(len(setting.rows)))
    plain = setting.run(everyone, ReferencePagedAttention)
    for i, got in setting.run(everyone, partial(PagedAttention, in_tiles=in_tiles)).items():
        assert got.isfinite().all()
        torch.testing.assert_close(got, plain[i], atol=2e-6, rtol=2e-5)


def test_rows_of_padding_alone_are_harmless() -> None:
    setting = Setting([Row(0, 0, 5), Row(20, 1), Row(18, 0, 3)], 16, torch.float32)
    got = setting.run([0, 1, 2])
    alone = setting.run([1])
    torch.testing.assert_close(got[1], alone[1])
    assert setting.kv.storage[0, :, setting.kv.null_block * KV_HEADS : setting.kv.trash_block * KV_HEADS].eq(0).all()


@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_bfloat16_is_bitwise_the_same_in_any_company(block_size: int) -> None:
    """The operator under test is oneDNN's; where a CPU computes bfloat16 by other means this may not hold."""
    rows = [*MIXED, Row(700, 1), Row(1500, 1), Row(300, 200), Row(1000, 60)]
    setting = Setting(rows, block_size, torch.bfloat16)
    everyone = list(range(len(rows)))
    together = setting.run(everyone)
    chosen = random.Random(1)
    companies = [[i] for i in everyone] + [chosen.sample(everyone, n) for n in (2, 3, 5, 8, 11)]
    for company in companies:
        for i, got in setting.run(company).items():
            assert torch.equal(got, together[i]), f"row {i} differs in company {company}"


@pytest.mark.parametrize("first", [1, 16, 50, 127, 128, 129, 200])
def test_a_prompt_cut_anywhere_gets_the_same_bits(first: int) -> None:
    whole = Setting([Row(0, 300)], 16, torch.bfloat16)
    expected = whole.run([0])[0]
    cut = Setting([Row(0, 300)], 16, torch.bfloat16)
    cut.rows[0] = Row(0, first)
    q = cut.q[0]
    k, v = cut.k[0], cut.v[0]
    cut.q[0], cut.k[0], cut.v[0] = q[:first], k[:first], v[:first]
    head = cut.run([0])[0]
    cut.rows[0] = Row(first, 300 - first)
    cut.q[0], cut.k[0], cut.v[0] = q[first:], k, v
    tail = cut.run([0])[0]
    assert torch.equal(torch.cat((head, tail)), expected)


def test_tables_are_as_wide_as_whole_vectors() -> None:
    assert table_width(0, 16) == 1
    assert table_width(17, 16) == 2
    assert table_width(1, 1) == 16
    assert table_width(7, 5) == 16
    assert table_width(33, 24) == 2
