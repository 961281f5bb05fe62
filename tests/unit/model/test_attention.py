"""The attention seam's offline forms agree with each other and with attention written out."""

import math

import pytest
import torch

from engine.model.attention import DenseCacheAttention, FullAttention, PaddedAttention, padding_mask
from engine.model.config import ModelConfig
from engine.model.rope import RopeParameters

H, HKV, D = 4, 2, 8


def config(num_layers: int = 1) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=10,
        hidden_size=H * D,
        intermediate_size=8,
        num_hidden_layers=num_layers,
        num_attention_heads=H,
        num_key_value_heads=HKV,
        head_dim=D,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope=RopeParameters(),
    )


def qkv(num_tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(num_tokens, H, D, generator=generator)
    k, v = (torch.randn(num_tokens, HKV, D, generator=generator) for _ in range(2))
    return q, k, v


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Token by token, head by head, in float64."""
    answer = torch.zeros(len(q), H, D, dtype=torch.float64)
    for token in range(len(q)):
        for head in range(H):
            keys, values = k[: token + 1, head // (H // HKV)].double(), v[: token + 1, head // (H // HKV)].double()
            weights = torch.softmax(keys @ q[token, head].double() / math.sqrt(D), dim=0)
            answer[token, head] = weights @ values
    return answer.flatten(1)


def test_full_attention_is_causal_grouped_and_scaled() -> None:
    q, k, v = qkv(7)
    assert torch.allclose(FullAttention()(0, q, k, v).double(), written_out(q, k, v), atol=1e-5)


@pytest.mark.parametrize("split", [1, 3, 6])
def test_a_cache_gives_what_recomputing_gives(split: int) -> None:
    q, k, v = qkv(7)
    cache = DenseCacheAttention(config(), torch.tensor([0]), max_length=7)
    parts = [cache(0, q[:split], k[:split], v[:split])]
    for token in range(split, 7):
        assert cache.current_length() == token
        parts.append(cache(0, q[token : token + 1], k[token : token + 1], v[token : token + 1]))
    assert torch.allclose(torch.cat(parts), FullAttention()(0, q, k, v), atol=1e-6)


def test_rows_of_a_padded_batch_do_not_see_padding_or_each_other() -> None:
    lengths, longest = [3, 7, 5], 7
    padding = torch.tensor([longest - length for length in lengths])
    rows = [qkv(length, seed) for seed, length in enumerate(lengths)]
    rectangles = []
    for part in range(3):
        filled = []
        for row, count in zip(rows, padding.tolist(), strict=True):
            noise = torch.full((count, *row[part].shape[1:]), 1e3)  # whatever padding computed must not matter
            filled.append(torch.cat((noise, row[part])))
        rectangles.append(torch.cat(filled))
    for attend in (PaddedAttention(padding), DenseCacheAttention(config(), padding, max_length=longest)):
        answer = attend(0, *rectangles).view(3, longest, -1)
        assert torch.isfinite(answer).all()
        for index, row in enumerate(rows):
            expected = FullAttention()(0, *row)
            assert torch.allclose(answer[index, longest - lengths[index] :], expected, atol=1e-5)


def test_the_mask_of_a_padded_row() -> None:
    mask = padding_mask(torch.tensor([0, 2]), start=1, num_new=2)  # columns 1 and 2 of a rectangle of 3
    assert mask.shape == (2, 1, 2, 3)
    assert mask[0, 0].tolist() == [[True, True, False], [True, True, True]]
    assert mask[1, 0].tolist() == [[False, True, False], [False, False, True]]


def test_layers_keep_separate_keys_and_a_full_cache_says_so() -> None:
    cache = DenseCacheAttention(config(num_layers=2), torch.tensor([0]), max_length=2)
    first, second = qkv(2, seed=1), qkv(2, seed=2)
    cache(0, *first)
    assert torch.allclose(cache(1, *second), FullAttention()(1, *second), atol=1e-6)
    with pytest.raises(ValueError, match="holds 2 positions per row; 3 were asked for"):
        cache(0, *qkv(1))
