"""GGUF files of the small models, written with the `gguf` package in llama.cpp's conventions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize
from safetensors.numpy import load_file

KINDS = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
TENSOR_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def convert(folder: Path, out: Path, matrix_type: str = "F32", extra: dict[str, np.ndarray] | None = None) -> Path:
    """Write a tiny Hugging Face folder as GGUF, as llama.cpp's converter would: Q and K rows interleaved for `llama`.

    `matrix_type` is how matrices are stored (their rows must be a multiple of 32 wide for the quantized ones).
    """
    config = json.loads((folder / "config.json").read_text())
    kind = KINDS[config["architectures"][0]]
    writer = gguf.GGUFWriter(out, kind)
    _write_sizes(writer, config)
    for name, weight in load_file(folder / "model.safetensors").items():
        if kind == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            weight = interleave(weight, heads)
        _add(writer, gguf_name(name), weight, matrix_type)
    for name, weight in (extra or {}).items():
        _add(writer, name, weight, "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def interleave(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rotate-half rows (first halves, second halves of a head) to llama.cpp's neighbouring pairs."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def gguf_name(name: str) -> str:
    stem, _, leaf = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{TENSOR_NAMES[part]}.{leaf}"
    return f"{TENSOR_NAMES[stem]}.{leaf}"


def _write_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_token_list(["a", "b", "ü"])
    writer.add_token_scores([0.5, 1.5, 2.5])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_eot_token_id(2)


def _add(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, matrix_type: str) -> None:
    if weight.ndim == 1 or matrix_type == "F32":
        writer.add_tensor(name, weight.astype(np.float32))
        return
    kind = gguf.GGMLQuantizationType[matrix_type]
    writer.add_tensor(name, quantize(weight.astype(np.float32), kind), raw_dtype=kind)
