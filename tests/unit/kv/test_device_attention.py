"""The routes that follow block tables on a card, as far as a CPU can tell: what they hand over, and what comes back."""

import inspect
import shutil
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kv import device_attention
from engine.kv.device_attention import FlexRead, VarlenRead, why_not
from engine.kv.paged_attention import DecodeGroup, DecodeReader, PagedAttention, ReferencePagedAttention
from engine.kv.tensors import KVTensors
from tests.unit.kv.paged_setting import Row, Setting

DECODE = [Row(0, 1), Row(5, 1), Row(15, 1), Row(16, 1), Row(40, 1), Row(255, 1), Row(256, 1), Row(300, 1), Row(511, 1)]


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """torch's operator in plain words, for one query a sequence, with the demands that its kernel makes."""
    assert cu_seq_k is not None
    assert seqused_k is not None
    assert block_table is not None
    num_sequences = len(cu_seq_q) - 1
    for numbers in (cu_seq_q, cu_seq_k, seqused_k, block_table):
        assert numbers.dtype == torch.int32
        assert numbers.is_contiguous()
    assert cu_seq_q.tolist() == list(range(num_sequences + 1))
    assert cu_seq_k.diff().tolist() == seqused_k.tolist()
    assert max_q == 1
    assert window_size == (-1, -1)
    assert block_table.shape == (num_sequences, max_k // key.shape[1])
    assert key.shape[1] % 256 == 0
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert query.shape[1] % key.shape[2] == 0
    assert enable_gqa
    out = torch.empty_like(query)
    for i, length in enumerate(seqused_k.tolist()):
        assert 1 <= length <= max_k
        keys, values = (pages[block_table[i].long()].flatten(0, 1)[:length].transpose(0, 1) for pages in (key, value))
        seen = F.scaled_dot_product_attention(query[i][:, None], keys, values, scale=scale, enable_gqa=True)
        out[i] = seen[:, 0]
    return out


def test_the_stand_in_takes_what_the_real_one_takes() -> None:
    real = inspect.signature(pytest.importorskip("torch.nn.attention.varlen").varlen_attn).parameters
    if "block_table" not in real:
        pytest.skip("this torch has no block tables yet")
    stand_in = inspect.signature(varlen_attn).parameters
    assert [(p.name, p.kind, p.default) for p in real.values()] == [
        (p.name, p.kind, p.default) for p in stand_in.values()
    ]


def equals_its_plain_form(rows: list[Row], block_size: int, reader: DecodeReader) -> None:
    setting = Setting(rows, block_size, torch.float32)
    everyone = list(range(len(rows)))
    plain = setting.run(everyone, ReferencePagedAttention)
    for i, got in setting.run(everyone, partial(PagedAttention, decode_reader=reader)).items():
        torch.testing.assert_close(got, plain[i], atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("block_size", [256, 512])
def test_varlen_equals_the_plain_form(block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_attention, "varlen_attn", varlen_attn)
    equals_its_plain_form(DECODE, block_size, VarlenRead)
    equals_its_plain_form([*DECODE, Row(0, 70), Row(30, 20, 3)], block_size, VarlenRead)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling needs a C++ compiler")
def test_flex_equals_the_plain_form() -> None:
    def wide(kv: KVTensors, group: DecodeGroup) -> FlexRead:
        """On the CPU, FlexAttention wants a mask as wide as the pool."""
        missing = (kv.num_blocks + 2) * kv.num_kv_heads - group.tables.shape[1]
        tables = F.pad(group.tables, (0, missing), value=kv.null_block)
        return FlexRead(kv, DecodeGroup(group.first_row, tables, group.lengths))

    with torch.inference_mode():
        equals_its_plain_form(DECODE, 16, wide)


def test_what_cannot_be_used_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    kv = KVTensors(1, 4, 16, 2, 64, torch.bfloat16)
    assert why_not("gather", kv) is None
    assert why_not("varlen", kv) == why_not("flex", kv) == "it needs a CUDA card"

    class OnCard:
        is_cuda, dtype = True, torch.bfloat16

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(device_attention, "varlen_attn", varlen_attn)
    kv.storage = OnCard()  # type: ignore[assignment]
    assert why_not("flex", kv) is None
    assert "blocks of 256 tokens and heads of 8 to 256, not 16 and 64" in str(why_not("varlen", kv))
    kv.block_size = 48
    assert "blocks of 48" in str(why_not("flex", kv))
    kv.block_size = 256
    assert why_not("varlen", kv) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert "compute capability" in str(why_not("varlen", kv))
    monkeypatch.setattr(device_attention, "varlen_attn", lambda query: query)
    assert "no varlen_attn with block tables" in str(why_not("varlen", kv))
