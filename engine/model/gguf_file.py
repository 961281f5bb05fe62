"""A GGUF file as a model: its configuration, and its tensors under Hugging Face's names and in its row order.

Owns the translation from llama.cpp's world: names of keys and tensors, the row order of Q and K, and 4-bit blocks,
dequantized (by the `gguf` package) or as they are. Never knows what the weights are used for.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.errors import ModelError
from engine.model.gguf_header import GGUFHeader, read_header
from engine.model.rope import RopeParameters

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ROPE_DIVISORS = "rope_freqs.weight"
"""llama.cpp's form of Llama 3's RoPE scaling: one divisor for each frequency."""
SLICE_WEIGHTS = 2**21
"""Weights dequantized at once: 8 MB of float32."""
BLOCK_SIZE = 32
"""Weights that share a scale in Q4_0 and Q4_1."""

_TOP_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class FourBitBlocks:
    """A matrix as it is stored: weight = values * scales + minima, each scale shared by 32 neighbours of a row.

    values (rows, columns) uint8 from 0 to 15; scales and minima (rows, columns / 32) float16.
    """

    values: Tensor
    scales: Tensor
    minima: Tensor


class GGUFFile:
    """The `Weights` of a .gguf file, and its `config`."""

    def __init__(self, path: Path) -> None:
        """Read the header alone. Raises ModelError for a damaged file or a model that isn't implemented."""
        self.path = path
        self.header = read_header(path)
        self._gguf_names = {hf_name(name): name for name in self.header.tensors}
        self.config = config_from_header(self.header)
        if ROPE_DIVISORS in self._gguf_names:
            divisors = tuple(self.read(ROPE_DIVISORS, torch.float32).tolist())
            rope = dataclasses.replace(self.config.rope, frequency_divisors=divisors)
            self.config = dataclasses.replace(self.config, rope=rope)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See Weights; the RoPE divisors are part of the configuration."""
        names = self._gguf_names.items()
        return {name: self.header.tensors[gguf_name].shape for name, gguf_name in names if name != ROPE_DIVISORS}

    def type_name(self, name: str) -> str:
        """How a tensor is stored: "F32", "BF16", "Q4_1", "Q8_0" ..."""
        return self.header.tensors[self._gguf_names[name]].type_name

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """See Weights: dequantized a slice of rows at a time, so that float32 copies of large tensors never exist."""
        entry = self.header.tensors[self._gguf_names[name]]
        raw = self._raw_rows(name)  # (rows, bytes of a row)
        tensor = torch.empty(len(raw), math.prod(entry.shape) // len(raw), dtype=dtype)
        rows_at_once = max(1, SLICE_WEIGHTS // tensor.shape[1])
        for start in range(0, len(raw), rows_at_once):
            tensor[start : start + rows_at_once] = self._dequantized(raw[start : start + rows_at_once], entry.type_name)
        return tensor.view(entry.shape)

    def read_blocks(self, name: str) -> FourBitBlocks | None:
        """The tensor's own 4-bit blocks, rows in Hugging Face's order; None unless it is Q4_0 or Q4_1."""
        entry = self.header.tensors[self._gguf_names[name]]
        if entry.type_name not in ("Q4_0", "Q4_1") or len(entry.shape) != 2:
            return None
        rows, columns = entry.shape
        raw = self._raw_rows(name).view(rows, columns // BLOCK_SIZE, -1)  # (rows, columns / 32, bytes of a block)
        scales = raw[:, :, 0:2].contiguous().view(torch.float16).squeeze(-1)  # (rows, columns / 32)
        if entry.type_name == "Q4_1":
            minima = raw[:, :, 2:4].contiguous().view(torch.float16).squeeze(-1)
        else:
            minima = scales * -8.0  # Q4_0 stores (value - 8) * scale; a power of two rounds nothing
        nibbles = raw[:, :, -BLOCK_SIZE // 2 :]  # (rows, columns / 32, 16): low halves first, then high halves
        values = torch.cat((nibbles & 0x0F, nibbles >> 4), dim=-1).view(rows, columns)
        return FourBitBlocks(values, scales, minima)

    def _raw_rows(self, name: str) -> Tensor:
        """(rows, bytes of a row) uint8, rows in Hugging Face's order; a vector has one element a row."""
        gguf_name = self._gguf_names[name]
        entry = self.header.tensors[gguf_name]
        raw = np.fromfile(self.path, dtype=np.uint8, count=entry.num_bytes, offset=entry.offset)
        if len(raw) != entry.num_bytes:
            raise ModelError(f"{self.path.name} ended inside {gguf_name}; it was changed while it was read")
        is_quantized_vector = len(entry.shape) == 1 and entry.num_bytes % entry.shape[0]
        rows = torch.from_numpy(raw).view(1 if is_quantized_vector else entry.shape[0], -1)
        if self.config.architecture != "LlamaForCausalLM" or (".q_proj." not in name and ".k_proj." not in name):
            return rows
        num_heads = self.config.num_attention_heads if ".q_proj." in name else self.config.num_key_value_heads
        if len(rows) % (2 * num_heads):
            raise ModelError(
                f"{self.path.name}: {gguf_name} has {len(rows)} rows, which {num_heads} heads cannot share"
            )
        return rows[rows_in_hf_order(num_heads, len(rows) // num_heads)]

    def _dequantized(self, raw: Tensor, type_name: str) -> Tensor:
        """raw (rows, bytes) uint8 -> (rows, columns) float."""
        if type_name == "BF16":
            return raw.view(torch.bfloat16)
        try:
            floats = dequantize(raw.numpy(), GGMLQuantizationType[type_name])
        except NotImplementedError:
            raise ModelError(
                f"{self.path.name} holds {type_name} tensors, which the gguf package cannot dequantize; "
                "choose a file in another quantization, such as Q4_1, Q8_0 or BF16"
            ) from None
        return torch.from_numpy(np.asarray(floats, dtype=np.float32))


def hf_name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `layers.3.self_attn.q_proj.weight`; an unknown name stays, to be reported as such."""
    layered = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", gguf_name)
    if layered and layered[2] in _LAYER_NAMES:
        return f"layers.{layered[1]}.{_LAYER_NAMES[layered[2]]}.{layered[3]}"
    top, _, leaf = gguf_name.rpartition(".")
    return f"{_TOP_NAMES[top]}.{leaf}" if top in _TOP_NAMES else gguf_name


def rows_in_hf_order(num_heads: int, head_dim: int) -> Tensor:
    """For each row of a Q or K matrix in rotate-half order, the row of the file that holds it: (H * D,).

    llama.cpp rotates neighbours (0, 1), (2, 3) ..., Hugging Face pairs (0, D/2), (1, D/2 + 1) ...; so within a head the
    file's even rows are the first half and its odd rows the second. K has its own, smaller number of heads.
    """
    rows = torch.arange(num_heads * head_dim).view(num_heads, head_dim // 2, 2)
    return rows.transpose(1, 2).reshape(-1)


def config_from_header(header: GGUFHeader) -> ModelConfig:
    """The model a header describes. Raises ModelError for what is missing, impossible or not implemented."""
    kind = header.metadata.get("general.architecture")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ModelError(f"GGUF architecture {kind!r} is not supported; this engine reads {', '.join(ARCHITECTURES)}")
    get = _Keys(header.metadata, kind)
    if get.optional("expert_count", 0):
        raise ModelError("mixture-of-experts GGUF files are not supported; this engine computes dense models")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError("the GGUF file has no token_embd.weight; is it a language model?")
    num_heads = get.size("attention.head_count")
    head_dim = get.optional("attention.key_length", get.size("embedding_length") // num_heads)
    if get.optional("rope.dimension_count", head_dim) != head_dim:
        raise ModelError(
            "GGUF files that rotate only part of a head are not supported; this engine rotates whole heads"
        )
    has = header.tensors.__contains__
    return ModelConfig(
        architecture=ARCHITECTURES[kind],
        vocab_size=embedding.shape[0],
        hidden_size=get.size("embedding_length"),
        intermediate_size=get.size("feed_forward_length"),
        num_hidden_layers=get.size("block_count"),
        num_attention_heads=num_heads,
        num_key_value_heads=get.optional("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position_embeddings=get.size("context_length"),
        rms_norm_eps=get.optional("attention.layer_norm_rms_epsilon", 1e-5),
        rope=_rope(get),
        tie_word_embeddings=not has("output.weight"),
        attention_bias=has("blk.0.attn_q.bias"),
        attention_output_bias=has("blk.0.attn_output.bias"),
        mlp_bias=has("blk.0.ffn_gate.bias"),
        qk_norm=kind == "qwen3",
        dtype={"F32": "float32", "F16": "float16"}.get(embedding.type_name, "bfloat16"),
        bos_token_id=next(iter(_token_ids(header.metadata, "bos")), None),
        eos_token_ids=_token_ids(header.metadata, "eos", "eot", "eom"),  # each of them ends an answer
    )


class _Keys:
    """Metadata under the architecture's prefix, in words when one is missing."""

    def __init__(self, metadata: Mapping[str, Any], prefix: str) -> None:
        self.metadata, self.prefix = metadata, prefix

    def optional(self, key: str, default: Any) -> Any:
        return self.metadata.get(f"{self.prefix}.{key}", default)

    def size(self, key: str) -> int:
        value = self.optional(key, None)
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"GGUF key {self.prefix}.{key} must be a whole number of at least 1, got {value!r}")
        return value


def _rope(get: _Keys) -> RopeParameters:
    config = {"rope_theta": get.optional("rope.freq_base", 10000.0)}
    scaling = get.optional("rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise ModelError(f"GGUF RoPE scaling {scaling!r} is not supported; this engine computes none and linear")
    if scaling == "linear":
        factor = get.optional("rope.scaling.factor", 1.0)
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    return RopeParameters.from_hf(config, get.size("context_length"))


def _token_ids(metadata: Mapping[str, Any], *kinds: str) -> tuple[int, ...]:
    ids = (metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in kinds)
    return tuple(dict.fromkeys(token for token in ids if isinstance(token, int)))
