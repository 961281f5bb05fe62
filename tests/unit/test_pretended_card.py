"""A decode step and a mixed pass on a card that is only pretended: torch keeps shapes and devices and computes nothing.

What would fail on first contact fails here too: a tensor left on the CPU, and reading a value, which a captured graph
must not do.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from engine.bench.gpu_model import StateDict, reference_model
from engine.decode_graphs import DecodeGraphs, rehearse
from engine.kv import device_attention, paged_attention
from engine.kv.paged_attention import Chunk, DecodeGroup, PagedAttention
from engine.kv.tensors import KVTensors
from engine.model.config import ModelConfig
from engine.model.loader import assemble

CARD = torch.device("cuda", 0)


class Weights(StateDict):
    """Weights on the card, of the right shapes."""

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(self._tensors[name].shape, dtype=dtype, device=CARD)


def fake_varlen(query: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
    devices = {query.device, *(x.device for x in (*rest, *named.values()) if isinstance(x, torch.Tensor))}
    assert devices == {CARD}
    return torch.empty_like(query)


@pytest.fixture
def pretended() -> Any:
    real = reference_model("small", "cpu", torch.bfloat16, 0)
    weights, config = Weights(real), ModelConfig.from_hf(real.config.to_dict())
    with FakeTensorMode(), torch.inference_mode():
        yield assemble(config, weights, torch.bfloat16, CARD, quantization="none").model


def pool(config: ModelConfig, block_size: int) -> KVTensors:
    return KVTensors(
        config.num_hidden_layers, 50, block_size, config.num_key_value_heads, config.head_dim, torch.bfloat16, CARD
    )


def on_card(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=CARD)


@pytest.mark.parametrize(("route", "block_size"), [("gather", 16), ("varlen", 256)])
def test_a_decode_step_stays_on_the_card(
    pretended: Any, route: str, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_attention, "varlen_attn", fake_varlen)
    graphs = DecodeGraphs(pretended, pool(pretended.config, block_size), 1.0, 512, rehearse, route)
    graphs._logits = torch.empty(256, 512, device=CARD)
    step: Any = SimpleNamespace(numbers=on_card(3, 8), lengths=on_card(8), tables=on_card(8, 256 // block_size))
    graphs._compute(step, 8)
    assert graphs._logits.device == CARD


def test_a_mixed_pass_stays_on_the_card(pretended: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "causal_lower_right", lambda *size: None)  # itself a kind of tensor
    kv = pool(pretended.config, 16)
    groups = [DecodeGroup(0, on_card(4, 2), on_card(4))]
    chunks = [Chunk(4, 0, 20, 0, on_card(2)), Chunk(24, 0, 16, 3, on_card(1))]
    numbers = on_card(3, 43)
    attend = PagedAttention(kv, numbers[2], groups, chunks, 1.0, in_tiles=False)
    hidden = pretended(numbers[0], numbers[1], attend)
    assert pretended.logits(hidden).device == CARD


def test_the_pretence_sees_faults(pretended: Any) -> None:
    kv = pool(pretended.config, 16)
    with pytest.raises(RuntimeError):
        PagedAttention(kv, on_card(8), [DecodeGroup(0, torch.zeros(8, 16, dtype=torch.int64), on_card(8))], [], 1.0)
    with pytest.raises(DataDependentOutputException):
        on_card(8).tolist()
