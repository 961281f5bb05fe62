"""The reference forward pass: a Llama-shaped decoder over packed tokens, written to be read.

Owns the arithmetic of one pass: embeddings, RMSNorm, attention projections, RoPE, SwiGLU, the output head. Never knows
how tokens are batched, who asked for them, or where keys and values are kept: that is `attend`'s business. The names of
the parameters are those of Hugging Face checkpoints without the leading `model.`. Letters: N packed tokens, H heads,
Hkv key/value heads, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.model.attention import Attend
from engine.model.config import ModelConfig
from engine.model.rope import RotaryEmbedding, rotate


class Linear(nn.Linear):
    """torch's, whose weights always come from a checkpoint: random ones first would only cost time."""

    def reset_parameters(self) -> None:
        """Nothing: on the meta device even that would import a second of compiler."""


class Embedding(nn.Embedding):
    """torch's, without the random weights; see Linear."""

    def reset_parameters(self) -> None:
        """Nothing."""


class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang & Sennrich 2019): the statistics in float32, the gain in the model's dtype."""

    def __init__(self, size: int, eps: float) -> None:
        """`eps` keeps the root away from zero."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Scale the last dimension of `x` to root-mean-square 1, then by the gain; the shape stays."""
        x32 = x.to(torch.float32)
        x32 = x32 * torch.rsqrt(x32.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * x32.to(x.dtype)


class SelfAttention(nn.Module):
    """Projections around the attention seam, with grouped queries (Ainslie et al. 2023) and RoPE."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        """`layer` is the number under which `attend` keeps this layer's keys and values."""
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        q_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, q_size, bias=config.attention_bias)
        self.k_proj = Linear(config.hidden_size, kv_size, bias=config.attention_bias)
        self.v_proj = Linear(config.hidden_size, kv_size, bias=config.attention_bias)
        self.o_proj = Linear(q_size, config.hidden_size, bias=config.attention_output_bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """x (N, hidden), cos and sin (N, 1, D) -> (N, hidden)."""
        q = self.q_proj(x).view(len(x), -1, self.head_dim)  # (N, H, D)
        k = self.k_proj(x).view(len(x), -1, self.head_dim)  # (N, Hkv, D)
        v = self.v_proj(x).view(len(x), -1, self.head_dim)  # (N, Hkv, D)
        q = rotate(self.q_norm(q), cos, sin)
        k = rotate(self.k_norm(k), cos, sin)
        return self.o_proj(attend(self.layer, q, k, v))


class SwiGLU(nn.Module):
    """Gated feed-forward (Shazeer 2020): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        """Three projections between `hidden_size` and `intermediate_size`."""
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, hidden) -> (N, hidden)."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """Attention, then feed-forward, each on a normed copy and added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        """`layer` counts from 0."""
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = SelfAttention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """x (N, hidden) -> (N, hidden)."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The whole model. `forward` answers hidden states; `logits` is apart, so that only rows that sample pay for it."""

    def __init__(self, config: ModelConfig) -> None:
        """Build with whatever default device is set: under `torch.device("meta")` nothing is allocated."""
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = RotaryEmbedding(config.rope, config.head_dim)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def output_weight(self) -> Tensor:
        """(vocab, hidden): the head's weights, which are the embedding itself when the two are tied."""
        return self.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """token_ids (N,) at positions (N,) of their own sequences -> hidden states (N, hidden) after the last norm."""
        x = self.embed_tokens(token_ids)  # (N, hidden)
        cos, sin = self.rotary(positions, x.dtype)  # (N, 1, D)
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (M, hidden) -> (M, vocab) in float32, whatever dtype the product was computed in."""
        return F.linear(hidden, self.output_weight).to(torch.float32)
