"""Paged attention against its plain form, and every row's independence from its neighbours."""

import random
from functools import partial

import pytest
import torch

from engine.kv.paged_attention import PagedAttention, ReferencePagedAttention, table_width
from tests.unit.kv.paged_setting import KV_HEADS, Row, Setting

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
