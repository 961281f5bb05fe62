"""Looking into the forward pass changes nothing, names everything, and leaves nothing behind."""

import pytest
import torch

from engine.model.attention import DenseCacheAttention, FullAttention
from engine.model.checkpoint import load
from engine.model.collect import Collector
from engine.model.llama import Llama
from tests import tiny_models

IDS = torch.arange(10, 30)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    return load(tiny_models.rand(tmp_path_factory.mktemp("rand")), torch.float32)[0]


@torch.inference_mode()
def test_the_pass_is_the_real_one_and_its_parts_add_up(model: Llama) -> None:
    plain = model(IDS, torch.arange(20), FullAttention())
    with Collector(model) as collector:
        watched = model(IDS, torch.arange(20), collector.watching(FullAttention()))
    seen = collector.activations
    assert torch.equal(watched, plain)
    assert torch.equal(seen["norm"], plain)
    assert torch.equal(seen["embed_tokens"], model.embed_tokens(IDS))
    after_attention = seen["embed_tokens"] + seen["layers.0.self_attn.o_proj"]
    assert torch.equal(seen["layers.0"], after_attention + seen["layers.0.mlp"])
    assert seen["layers.0.self_attn.q_rope"].shape == (20, 4, 16)
    assert seen["layers.0.self_attn.k_rope"].shape == (20, 2, 16)
    assert torch.equal(seen["layers.1.self_attn.v"].flatten(1), seen["layers.1.self_attn.v_proj"])


def test_nothing_stays_behind(model: Llama) -> None:
    with Collector(model) as collector:
        pass
    model(IDS, torch.arange(20), FullAttention())
    assert collector.activations == {}
    assert all(not module._forward_hooks for module in model.modules())


@torch.inference_mode()
def test_later_passes_get_their_own_names(model: Llama) -> None:
    cache = DenseCacheAttention(model.config, torch.tensor([0]), 20)
    with Collector(model, wants=lambda name: name.endswith("k_rope")) as collector:
        attend = collector.watching(cache)
        model(IDS[:19], torch.arange(19), attend)
        model(IDS[19:], torch.arange(19, 20), attend)
    assert len(collector.activations) == 2 * 3
    assert collector.activations["layers.0.self_attn.k_rope"].shape[0] == 19
    assert collector.activations["layers.0.self_attn.k_rope#2"].shape[0] == 1
