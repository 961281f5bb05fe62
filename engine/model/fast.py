"""The same forward pass as `llama.Llama`, arranged for speed: fewer operators, weights in the form they are used in.

Owns the arrangement: q, k, v in one product, gate and up in one, the attention scale inside the query weights, RoPE as
one multiply-add. Never knows batching, requests or caches, and holds no arithmetic of its own: `llama.py` says what is
computed, and the tests compare. Letters: N packed tokens, H heads, Hkv key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.attention import Attend
from engine.model.config import ModelConfig
from engine.model.linears import Linear
from engine.model.rope import inverse_frequencies


@dataclass(frozen=True, slots=True)
class FastLayer:
    """One layer's weights. Gains are the weights of RMS norms (see `rms_norm`); `q_gain` and `k_gain` are Qwen3's."""

    qkv: Linear  # hidden -> (H + 2 Hkv) * D
    o: Linear
    gated: Linear  # hidden -> intermediate: silu(gate) * up
    down: Linear
    input_gain: Tensor
    post_attention_gain: Tensor
    q_gain: Tensor | None = None
    k_gain: Tensor | None = None


class FastLlama:
    """A model as the runner asks for it: `forward` and `logits` mean what they mean in `llama.Llama`.

    `attention_scale` is 1: whoever attends must not scale again. `answer_form`, if there is one, is the same model
    with its layers' weights in another form, which computes the tokens of answers; embedding and head are shared.
    `num_computed` says how many rows the layers' products compute for N: they come once, at the start, instead of at
    every product; attention sees none of them.
    """

    attention_scale = 1.0

    def __init__(
        self,
        config: ModelConfig,
        embedding: Tensor,
        layers: list[FastLayer],
        last_gain: Tensor,
        head: Linear,
        answer_form: FastLlama | None = None,
        num_computed: Callable[[int], int] | None = None,
    ) -> None:
        """`embedding` (vocab, hidden); its dtype and device are those of the whole pass."""
        self.config, self.embedding, self.layers = config, embedding, layers
        self.last_gain, self.head, self.answer_form = last_gain, head, answer_form
        self._rotary, self._num_computed = SignedRotary(config, embedding.device), num_computed

    def __call__(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """token_ids (N,) at positions (N,) of their own sequences -> hidden states (N, hidden) after the last norm."""
        config, eps = self.config, self.config.rms_norm_eps
        num_rows, num_heads, num_kv_heads = len(token_ids), config.num_attention_heads, config.num_key_value_heads
        num_rotated = num_heads + num_kv_heads
        num_more = self._num_computed(num_rows) - num_rows if self._num_computed else 0
        if num_more:
            token_ids, positions = F.pad(token_ids, (0, num_more)), F.pad(positions, (0, num_more))
        x = F.embedding(token_ids, self.embedding)  # (N, hidden)
        cos, sin = self._rotary(positions, x.dtype)  # (N, 1, D)
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(rms_norm(x, layer.input_gain, eps)).view(len(x), -1, config.head_dim)
            qk, v = qkv[:, :num_rotated], qkv[:, num_rotated:]  # (N, H + Hkv, D), (N, Hkv, D)
            if layer.q_gain is not None and layer.k_gain is not None:
                q, k = rms_norm(qk[:, :num_heads], layer.q_gain, eps), rms_norm(qk[:, num_heads:], layer.k_gain, eps)
                qk = torch.cat((q, k), dim=1)
            qk = rotate(qk, cos, sin)
            if num_more:
                qk, v = qk[:num_rows], v[:num_rows]
            attended = attend(number, qk[:, :num_heads], qk[:, num_heads:], v)  # (N, H * D)
            if num_more:
                attended = torch.constant_pad_nd(attended, (0, 0, 0, num_more))
            x = x + layer.o(attended)
            x = x + layer.down(layer.gated(rms_norm(x, layer.post_attention_gain, eps)))
        return rms_norm(x[:num_rows], self.last_gain, eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden (M, hidden) -> (M, vocab) in float32."""
        return self.head(hidden).to(torch.float32)

    @property
    def layers_nbytes(self) -> int:
        """Memory of the layers' matrices in bytes: what one decode step reads, the head aside."""
        linears = [linear for one in self.layers for linear in (one.qkv, one.o, one.gated, one.down)]
        return sum(linear.nbytes for linear in linears)

    @property
    def nbytes(self) -> int:
        """Memory of all weights, those of `answer_form` included, in bytes."""
        is_shared = getattr(self.head, "weight", None) is self.embedding
        ends = self.embedding.nbytes + (0 if is_shared else self.head.nbytes)
        return self.layers_nbytes + ends + (self.answer_form.layers_nbytes if self.answer_form else 0)


class SignedRotary:
    """cos and sin of a pass's positions, once for all layers, the sines with the sign that `rotate` wants."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._inv_freq = inverse_frequencies(config.rope, config.head_dim).to(device)  # (D / 2,)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and signed sin (N, 1, D) of positions (N,), in float32 until the last cast."""
        angles = positions.to(torch.float32)[:, None, None] * self._inv_freq  # (N, 1, D / 2)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """`rope.rotate` of x (N, H, D): rotating half and negating is a roll whose sign lies in the sines."""
    rolled = torch.roll(x, x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, rolled, signed_sin)


def gain_for_few_rows(weight: Tensor) -> Tensor:
    """An RMS norm's weight in the form with which `rms_norm` is fast for few rows on a CPU."""
    return torch.cat((weight, weight))


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension, K wide.

    On a CPU torch composes it of many operators, which is slow for few rows; but it has a fused layer norm, and the
    layer norm of (x, -x), whose mean is 0 and whose variance is the mean square of x, is the RMS norm of x beside its
    negative. Which of the two is computed depends on the gain's form alone, not on the number of rows.
    """
    width = x.shape[-1]
    if gain.shape[0] == width:
        return F.rms_norm(x, (width,), gain, eps)
    return torch.layer_norm(torch.cat((x, -x), dim=-1), (2 * width,), gain, None, eps)[..., :width].contiguous()
