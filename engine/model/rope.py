"""Rotary position embeddings (RoFormer, Su et al. 2021), in the rotate-half layout of Hugging Face checkpoints.

Owns the inverse frequencies with their scaling, the cos/sin tables of a pass, and the rotation. Never knows where a
position comes from. Letters: N packed tokens, H heads, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from engine.model.errors import ModelError

ROPE_TYPES = ("default", "llama3", "linear")


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """How positions turn into angles, in Hugging Face's names.

    `default`: theta alone. `linear`: all frequencies divided by `factor` (position interpolation). `llama3`: low
    frequencies divided by `factor`, high ones kept, the band between blended (Llama 3.1). `frequency_divisors` are
    D/2 explicit divisors, as GGUF files carry them in place of a named scaling.
    """

    rope_theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    frequency_divisors: tuple[float, ...] = ()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], max_position_embeddings: int) -> RopeParameters:
        """Read any of the three spellings: `rope_parameters` (transformers 5), `rope_scaling` beside `rope_theta`
        (4), or neither. Raises ModelError for an unknown RoPE type: unscaled angles would answer with nonsense.
        """
        nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(nested, Mapping):
            raise ModelError(f"config: rope_parameters must be an object, got {nested!r}")
        theta = nested.get("rope_theta", config.get("rope_theta", 10000.0))
        rope_type = nested.get("rope_type", nested.get("type", "default"))
        if rope_type not in ROPE_TYPES:
            raise ModelError(f"RoPE type {rope_type!r} is not supported; this engine computes {', '.join(ROPE_TYPES)}")
        rotated_part = nested.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
        if rotated_part != 1.0:
            raise ModelError(f"partial_rotary_factor {rotated_part} is not supported; this engine rotates whole heads")
        theta = _positive("rope_theta", theta)
        if rope_type == "default":
            return cls(theta)
        factor = _positive("factor", nested.get("factor"))
        if rope_type == "linear":
            return cls(theta, "linear", factor)
        low = _positive("low_freq_factor", nested.get("low_freq_factor"))
        high = _positive("high_freq_factor", nested.get("high_freq_factor"))
        if high <= low:
            raise ModelError(f"config: RoPE's high_freq_factor ({high}) must be more than its low_freq_factor ({low})")
        original = nested.get("original_max_position_embeddings", max_position_embeddings)
        original = int(_positive("original_max_position_embeddings", original))
        return cls(theta, "llama3", factor, low, high, original)


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ModelError(f"config: RoPE's {name} must be a positive number, got {value!r}")
    return float(value)


def inverse_frequencies(rope: RopeParameters, head_dim: int) -> Tensor:
    """Radians a position adds, for each of the D/2 rotated pairs: (D/2,) float32 on the CPU."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
    inv_freq = 1.0 / rope.rope_theta**exponents  # (D/2,)
    if rope.rope_type == "linear":
        inv_freq = inv_freq / rope.factor
    elif rope.rope_type == "llama3":
        inv_freq = _llama3_scaled(inv_freq, rope)
    if rope.frequency_divisors:
        if len(rope.frequency_divisors) != len(inv_freq):
            raise ModelError(
                f"RoPE has {len(rope.frequency_divisors)} frequency divisors; head_dim {head_dim} needs {len(inv_freq)}"
            )
        inv_freq = inv_freq / torch.tensor(rope.frequency_divisors, dtype=torch.float32, device="cpu")
    return inv_freq


def _llama3_scaled(inv_freq: Tensor, rope: RopeParameters) -> Tensor:
    """Llama 3.1's frequency-dependent stretching.

    A pair that turns often within the original context tells near tokens apart and is kept; one that doesn't finish a
    turn tells far positions apart and is slowed down by `factor`; between the two bands the scaling blends linearly.
    """
    wavelength = 2 * math.pi / inv_freq  # positions in one turn
    turns = rope.original_max_position_embeddings / wavelength  # within the original context
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)  # 0: slowed down, 1: kept
    return (1.0 - blend) * inv_freq / rope.factor + blend * inv_freq


class RotaryEmbedding(nn.Module):
    """cos and sin for the positions of a pass, always computed in float32.

    The frequencies are a plain attribute, neither parameter nor buffer: casting the model to bfloat16 must not round
    them, for at position 4000 an 8-bit mantissa is off by whole turns.
    """

    def __init__(self, rope: RopeParameters, head_dim: int) -> None:
        """Compute the frequencies on the CPU, also while the model is built on the meta device."""
        super().__init__()
        self.inv_freq = inverse_frequencies(rope, head_dim)  # (D/2,)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin (N, 1, D) of `positions` (N,), cast to `dtype` as the last step."""
        if self.inv_freq.device != positions.device:
            self.inv_freq = self.inv_freq.to(positions.device)
        angles = positions.to(torch.float32)[:, None] * self.inv_freq  # (N, D/2)
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]  # (N, 1, D): the same for every head
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each head of `x` (N, H, D) by its position's angles; element i pairs with i + D/2 (rotate-half)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
