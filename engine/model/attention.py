"""The attention seam, and its two offline forms: recompute everything, or a rectangular batch cache.

Owns causality, the 1/sqrt(D) scaling, and the masking of padding. The model calls `attend(layer, q, k, v)` and does
not know which form answers; the paged form lives with the KV cache. Letters: N packed tokens, B rows of a batch,
S tokens of this pass per row, T tokens to look at per row, H heads, Hkv key/value heads, D head size.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.config import ModelConfig


class Attend(Protocol):
    """What a layer asks of whoever keeps the keys and values."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend for the N packed tokens of this pass: q (N, H, D), k and v (N, Hkv, D), after RoPE -> (N, H * D)."""


def repeat_kv(x: Tensor, num_heads: int) -> Tensor:
    """Give every query head its group's keys or values: (B, Hkv, T, D) -> (B, H, T, D)."""
    group_size = num_heads // x.shape[1]
    return x if group_size == 1 else x.repeat_interleave(group_size, dim=1)


def _rows(x: Tensor, batch_size: int) -> Tensor:
    """(B * S, H, D) -> (B, H, S, D)."""
    return x.view(batch_size, -1, *x.shape[1:]).transpose(1, 2)


def _packed(x: Tensor) -> Tensor:
    """(B, H, S, D) -> (B * S, H * D)."""
    return x.transpose(1, 2).reshape(x.shape[0] * x.shape[2], -1)


class FullAttention:
    """Causal attention over the tokens of this pass and nothing else: one whole sequence, no cache."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Attend; the N tokens are one sequence from its start."""
        query, key, value = _rows(q, 1), _rows(k, 1), _rows(v, 1)  # (1, H, N, D), (1, Hkv, N, D)
        key, value = repeat_kv(key, query.shape[1]), repeat_kv(value, query.shape[1])
        return _packed(F.scaled_dot_product_attention(query, key, value, is_causal=True))


class PaddedAttention:
    """Causal attention over a left-padded rectangle of whole sequences, no cache; N = B * S, row after row."""

    def __init__(self, num_padding_tokens: Tensor) -> None:
        """`num_padding_tokens` (B,): how many physical positions at the start of each row are padding."""
        self.num_padding_tokens = num_padding_tokens
        self._mask: Tensor | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Attend; the N tokens are B rows of S, each row a left-padded sequence from its start."""
        batch_size = len(self.num_padding_tokens)
        query, key, value = _rows(q, batch_size), _rows(k, batch_size), _rows(v, batch_size)
        if layer == 0:
            self._mask = padding_mask(self.num_padding_tokens, 0, query.shape[2])
        key, value = repeat_kv(key, query.shape[1]), repeat_kv(value, query.shape[1])
        return _packed(F.scaled_dot_product_attention(query, key, value, attn_mask=self._mask))


class DenseCacheAttention:
    """Attention over one rectangular cache for the whole batch: the seed of every KV cache, and its static form.

    Stores keys after RoPE and values, for the full physical sequence, padding and inactive slots included: simple,
    and wasteful on purpose. Whether a pass is prefill or decode is told by what is already stored.
    """

    def __init__(
        self, config: ModelConfig, num_padding_tokens: Tensor, max_length: int, dtype: torch.dtype = torch.float32
    ) -> None:
        """Reserve B rows of `max_length` physical positions on the device of `num_padding_tokens` (B,)."""
        shape = (len(num_padding_tokens), config.num_key_value_heads, max_length, config.head_dim)
        device = num_padding_tokens.device
        self.num_padding_tokens = num_padding_tokens
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]
        self._lengths = [0] * config.num_hidden_layers
        self._mask: Tensor | None = None

    def current_length(self, layer: int = 0) -> int:
        """Physical positions stored so far."""
        return self._lengths[layer]

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store k and v (B, Hkv, S, D) behind what is there; answers with all of them (B, Hkv, T, D)."""
        start, end = self._lengths[layer], self._lengths[layer] + k.shape[2]
        if end > self.keys[layer].shape[2]:
            raise ValueError(f"the cache holds {self.keys[layer].shape[2]} positions per row; {end} were asked for")
        self.keys[layer][:, :, start:end] = k
        self.values[layer][:, :, start:end] = v
        self._lengths[layer] = end
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See Attend; the N tokens are B rows of S new positions each."""
        batch_size = len(self.num_padding_tokens)
        query = _rows(q, batch_size)  # (B, H, S, D)
        key, value = self.append(layer, _rows(k, batch_size), _rows(v, batch_size))  # (B, Hkv, T, D)
        if layer == 0:
            self._mask = padding_mask(self.num_padding_tokens, key.shape[2] - query.shape[2], query.shape[2])
        key, value = repeat_kv(key, query.shape[1]), repeat_kv(value, query.shape[1])
        return _packed(F.scaled_dot_product_attention(query, key, value, attn_mask=self._mask))


def padding_mask(num_padding_tokens: Tensor, start: int, num_new: int) -> Tensor:
    """Who may look at whom: (B, 1, S, T) bool, for S new physical positions behind `start` stored ones.

    A query sees every earlier position and itself, but no padding. A padding position sees itself alone, for a row
    of a softmax with nothing in it is NaN.
    """
    device = num_padding_tokens.device
    query = torch.arange(start, start + num_new, device=device)[:, None]  # (S, 1)
    key = torch.arange(start + num_new, device=device)[None, :]  # (1, T)
    is_real = key >= num_padding_tokens[:, None, None]  # (B, 1, T)
    return (((key <= query) & is_real) | (key == query))[:, None]
