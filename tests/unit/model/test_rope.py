"""Rotary embeddings: frequencies, scaling bands, and tables that keep their precision."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.model.errors import ModelError
from engine.model.rope import RopeParameters, RotaryEmbedding, inverse_frequencies, rotate

LLAMA3 = RopeParameters(10000.0, "llama3", 8.0, 1.0, 4.0, 64)


@pytest.mark.parametrize("head_dim", [16, 24, 64, 128])
def test_llama3_frequencies_equal_transformers(head_dim: int) -> None:
    config = LlamaConfig(
        head_dim=head_dim,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    )
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    assert torch.equal(inverse_frequencies(LLAMA3, head_dim), expected)


def test_llama3_keeps_fast_pairs_slows_slow_ones_and_blends_between() -> None:
    plain = inverse_frequencies(RopeParameters(10000.0), 64)
    ratio = inverse_frequencies(LLAMA3, 64) / plain
    turns = 64 * plain / (2 * torch.pi)
    assert torch.allclose(ratio[turns > 4], torch.ones(()))
    assert torch.allclose(ratio[turns < 1], torch.tensor(1 / 8))
    between = ratio[(turns > 1) & (turns < 4)]
    assert len(between) > 0
    assert ((between > 1 / 8) & (between < 1)).all()


def test_linear_scaling_divides_every_frequency() -> None:
    plain, scaled = RopeParameters(10000.0), RopeParameters(10000.0, "linear", 4.0)
    assert torch.equal(inverse_frequencies(scaled, 32), inverse_frequencies(plain, 32) / 4)


def test_explicit_divisors_must_fit_the_head() -> None:
    divisors = tuple(float(1 + index) for index in range(8))
    expected = inverse_frequencies(RopeParameters(), 16) / torch.tensor(divisors)
    assert torch.equal(inverse_frequencies(RopeParameters(frequency_divisors=divisors), 16), expected)
    with pytest.raises(ModelError, match="8 frequency divisors; head_dim 32 needs 16"):
        inverse_frequencies(RopeParameters(frequency_divisors=divisors), 32)


def test_a_pair_turns_by_its_angle() -> None:
    rotary = RotaryEmbedding(RopeParameters(10000.0), 4)
    cos, sin = rotary(torch.tensor([3]), torch.float32)
    x = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])  # element 0 pairs with element 2
    turned = rotate(x, cos, sin)[0, 0]
    assert torch.allclose(turned, torch.tensor([math.cos(3.0), 0.0, math.sin(3.0), 0.0]))


def test_scores_depend_on_distance_alone() -> None:
    torch.manual_seed(0)
    rotary = RotaryEmbedding(RopeParameters(10000.0), 32)
    q, k = torch.randn(1, 1, 32), torch.randn(1, 1, 32)
    scores = []
    for start in (0, 17, 300):
        cos, sin = rotary(torch.tensor([start + 5, start]), torch.float32)
        scores.append((rotate(q, cos[:1], sin[:1]) * rotate(k, cos[1:], sin[1:])).sum())
    assert torch.allclose(torch.stack(scores), scores[0].expand(3), atol=1e-4)


def test_casting_the_model_does_not_round_the_frequencies() -> None:
    rotary = RotaryEmbedding(LLAMA3, 64)
    before = rotary.inv_freq.clone()
    rotary.to(torch.bfloat16)
    assert torch.equal(rotary.inv_freq, before)
    positions = torch.arange(4000, 4100)
    exact = (positions.double()[:, None] * before.double()).cos()
    cos, _ = rotary(positions, torch.bfloat16)
    error = (cos[:, 0, :32].double() - exact).abs().max()
    assert error < 2**-8  # one rounding to bfloat16; angles in bfloat16 would be wrong by whole radians


def test_frequencies_are_real_even_when_built_on_the_meta_device() -> None:
    with torch.device("meta"):
        rotary = RotaryEmbedding(LLAMA3, 64)
    assert rotary.inv_freq.device.type == "cpu"
    assert torch.equal(rotary.inv_freq, inverse_frequencies(LLAMA3, 64))
