"""From a file to the fastest right model for a device: which form of the weights, and why.

Owns that choice and the assembly of `FastLlama`, layer by layer, so that no second copy of the model ever exists. Never
knows where the file came from (`source`) or who will ask the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from engine.model.checkpoint import Weights, check_names_and_shapes, empty_model, open_weights
from engine.model.config import ModelConfig
from engine.model.errors import ModelError
from engine.model.fast import FastLayer, FastLlama, gain_for_few_rows
from engine.model.linears import (
    Float16Linear,
    GatedLinear,
    Int4Linear,
    Linear,
    OneDNNGatedLinear,
    OneDNNLinear,
    PlainLinear,
    fits_float16,
    has_int4_linear,
    has_measured_int4_linear,
    has_onednn_linear,
    int4_fits,
    steady_num_rows,
)

if TYPE_CHECKING:  # a folder of safetensors is loaded without the gguf package
    from engine.model.gguf_file import FourBitBlocks, GGUFFile

QUANTIZATIONS = ("auto", "none", "int4")


@dataclass(frozen=True, slots=True)
class FastModel:
    """A model ready to run. `quantization` is "none" or "int4"; `reason` says in words why."""

    model: FastLlama
    quantization: str
    reason: str


def load_fast(
    path: Path | str,
    dtype: torch.dtype,
    device: str = "cpu",
    quantization: str = "auto",
    weight_dtype: torch.dtype | None = None,
) -> FastModel:
    """Load a Hugging Face folder or a .gguf file for serving. `weight_dtype` float16 keeps matrices in half the memory
    where all else is float32.

    Raises ModelError, in one line and before any weight is read, for a quantization that cannot be had here, and for
    files that don't fit their configuration.
    """
    config, weights = open_weights(Path(path))
    check_names_and_shapes(empty_model(config), weights.shapes(), config)
    return assemble(config, weights, dtype, device, quantization, weight_dtype)


def assemble(
    config: ModelConfig,
    weights: Weights,
    dtype: torch.dtype,
    device: str,
    quantization: str = "auto",
    weight_dtype: torch.dtype | None = None,
) -> FastModel:
    """The same from weights that are already open. Raises ModelError for a quantization that cannot be had here."""
    weight_dtype = weight_dtype or dtype
    is_int4, reason = choose_quantization(quantization, torch.device(device), dtype, weights, weight_dtype)
    model = _Assembly(config, weights, dtype, torch.device(device), weight_dtype).model(with_int4=is_int4)
    return FastModel(model, "int4" if is_int4 else "none", reason)


def choose_quantization(
    quantization: str, device: torch.device, dtype: torch.dtype, weights: Weights, weight_dtype: torch.dtype
) -> tuple[bool, str]:
    """Whether answers are computed with the file's own 4-bit blocks, and why. Raises ModelError where `int4` was asked
    for and cannot be."""
    if quantization not in QUANTIZATIONS:
        raise ModelError(f"--quantization {quantization!r} is not one of {', '.join(QUANTIZATIONS)}")
    if quantization == "none":
        return False, "none: no quantization was asked for"
    obstacle = _int4_obstacle(device, dtype, weights)
    if obstacle is None and quantization == "auto" and not has_measured_int4_linear():
        return False, "none: 4-bit products were not measured on this kind of CPU; --quantization int4 tries them"
    if obstacle is None and quantization == "auto" and weight_dtype != dtype:
        return (
            False,
            "none: several requests are faster with float16 weights; --quantization int4 speeds up a single one",
        )
    if obstacle is None:
        return True, "int4: answers are computed with the file's own 4-bit blocks, prompts with all bits"
    if quantization == "int4":
        raise ModelError(f"--quantization int4: {obstacle}; use --quantization none")
    return False, f"none: {obstacle}"


def _int4_obstacle(device: torch.device, dtype: torch.dtype, weights: Weights) -> str | None:
    if device.type != "cpu":
        return "4-bit weights are used on the CPU only"
    if dtype not in (torch.bfloat16, torch.float32):
        return "4-bit products need bfloat16 or float32"
    file = _as_gguf(weights)
    if file is None or file.type_name("layers.0.mlp.down_proj.weight") not in ("Q4_0", "Q4_1"):
        return "the file holds no 4-bit blocks (Q4_0 or Q4_1)"
    if not has_int4_linear():
        return "this build of torch has no 4-bit product for this CPU"
    return None


def _as_gguf(weights: Weights) -> GGUFFile | None:
    return cast("GGUFFile", weights) if hasattr(weights, "read_blocks") else None


class _Assembly:
    """Reads tensors and puts them together, one matrix at a time.

    Layers that compute answers see few rows at a time, those that compute nothing but prompts see many; where the two
    are different layers, each is arranged for its own.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
        weight_dtype: torch.dtype,
    ) -> None:
        self.config, self.weights, self.dtype, self.device = config, weights, dtype, device
        self.is_float16 = (dtype, weight_dtype) == (torch.float32, torch.float16)
        self.is_onednn = device.type == "cpu" and has_onednn_linear(dtype)

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """A matrix in the form in which it is multiplied fastest."""
        if self.is_float16 and fits_float16(weight):
            return Float16Linear(weight, bias)
        return OneDNNLinear(weight, bias) if self.is_onednn else PlainLinear(weight, bias)

    def model(self, with_int4: bool) -> FastLlama:
        """The whole model; with 4-bit layers beside the others as its `answer_form` if asked."""
        config, embedding = self.config, self._read("embed_tokens.weight")
        head = self.linear(embedding if config.tie_word_embeddings else self._read("lm_head.weight"), None)
        layers, int4_layers = [], []
        for number in range(config.num_hidden_layers):
            layers.append(self._layer(number, only_prompts=with_int4))
            if with_int4:
                int4_layers.append(self._int4_layer(number, layers[-1]))
        answer_form = None
        if with_int4:
            last_gain = self._gain("norm.weight", only_prompts=False)
            answer_form = FastLlama(config, embedding, int4_layers, last_gain, head)
        last_gain = self._gain("norm.weight", only_prompts=with_int4)
        num_computed = steady_num_rows if self.is_float16 else None
        return FastLlama(config, embedding, layers, last_gain, head, answer_form, num_computed)

    def _layer(self, number: int, only_prompts: bool) -> FastLayer:
        prefix, c = f"layers.{number}.", self.config
        scale = self._query_scale()
        q, q_bias = self._matrix(prefix + "self_attn.q_proj", c.attention_bias)
        scaled = (q * scale, q_bias * scale if q_bias is not None else None)
        rest = [self._matrix(prefix + name, c.attention_bias) for name in ("self_attn.k_proj", "self_attn.v_proj")]
        return FastLayer(
            qkv=self.linear(*_stacked([scaled, *rest])),
            o=self.linear(*self._matrix(prefix + "self_attn.o_proj", c.attention_output_bias)),
            gated=self._gated(prefix, only_prompts),
            down=self.linear(*self._matrix(prefix + "mlp.down_proj", c.mlp_bias)),
            **self._gains(prefix, only_prompts),
        )

    def _int4_layer(self, number: int, layer: FastLayer) -> FastLayer:
        """The same layer from the file's blocks; a matrix that isn't stored in 4 bits is shared with `layer`."""
        prefix = f"layers.{number}."
        scales = (self._query_scale(), 1.0, 1.0)
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        gate_up = self._int4([mlp + "gate_proj", mlp + "up_proj"])
        return FastLayer(
            qkv=self._int4([attention + f"{x}_proj" for x in "qkv"], scales) or layer.qkv,
            o=self._int4([attention + "o_proj"]) or layer.o,
            gated=GatedLinear(gate_up) if gate_up else layer.gated,
            down=self._int4([mlp + "down_proj"]) or layer.down,
            **self._gains(prefix, only_prompts=False),
        )

    def _query_scale(self) -> float:
        """What query weights are multiplied with; Qwen3's norm would undo it, so there the norm's gain carries it."""
        return 1.0 if self.config.qk_norm else self.config.head_dim**-0.5

    def _gated(self, prefix: str, only_prompts: bool) -> Linear:
        has_bias = self.config.mlp_bias
        gate, up = self._matrix(prefix + "mlp.gate_proj", has_bias), self._matrix(prefix + "mlp.up_proj", has_bias)
        if only_prompts and self.is_onednn and not self.is_float16:
            return OneDNNGatedLinear(OneDNNLinear(*gate), OneDNNLinear(*up))
        return GatedLinear(self.linear(*_stacked([gate, up])))

    def _gains(self, prefix: str, only_prompts: bool) -> dict[str, Tensor]:
        gains = {
            "input_gain": self._gain(prefix + "input_layernorm.weight", only_prompts),
            "post_attention_gain": self._gain(prefix + "post_attention_layernorm.weight", only_prompts),
        }
        if self.config.qk_norm:
            q_scale = self.config.head_dim**-0.5
            gains["q_gain"] = self._gain(prefix + "self_attn.q_norm.weight", only_prompts, q_scale)
            gains["k_gain"] = self._gain(prefix + "self_attn.k_norm.weight", only_prompts)
        return gains

    def _gain(self, name: str, only_prompts: bool, scale: float = 1.0) -> Tensor:
        weight = self._read(name) * scale
        return weight if only_prompts or self.device.type != "cpu" else gain_for_few_rows(weight)

    def _int4(self, names: Sequence[str], scales: Sequence[float] = (1.0, 1.0)) -> Int4Linear | None:
        """These matrices, one below the other and each times its scale, or None if one is not stored in 4 bits."""
        file = _as_gguf(self.weights)
        blocks: list[FourBitBlocks] = []
        for name in names:
            found = file.read_blocks(name + ".weight") if file else None
            if found is None:
                return None
            blocks.append(found)
        values = torch.cat([b.values for b in blocks])
        if not int4_fits(*values.shape):
            return None
        biases = [
            self._read(name + ".bias") * scale if name + ".bias" in self.weights.shapes() else None
            for name, scale in zip(names, scales, strict=False)
        ]
        return Int4Linear(
            values,
            torch.cat([b.scales.float() * scale for b, scale in zip(blocks, scales, strict=False)]),
            torch.cat([b.minima.float() * scale for b, scale in zip(blocks, scales, strict=False)]),
            torch.cat([b for b in biases if b is not None]) if None not in biases else None,
        )

    def _matrix(self, name: str, has_bias: bool) -> tuple[Tensor, Tensor | None]:
        return self._read(name + ".weight"), self._read(name + ".bias") if has_bias else None

    def _read(self, name: str) -> Tensor:
        return self.weights.read(name, self.dtype).to(self.device)


def _stacked(matrices: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    """Matrices of equally many columns, one below the other: one product instead of several."""
    biases = [bias for _, bias in matrices if bias is not None]
    return torch.cat([weight for weight, _ in matrices]), torch.cat(biases) if biases else None
