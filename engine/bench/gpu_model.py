"""Models of published shapes with random weights, for the card's check: transformers' and ours, from the same numbers.

Owns the shapes and the bridge between the two; nothing is downloaded and nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from engine.model.config import ModelConfig
from engine.model.loader import assemble
from engine.torch_runner import TorchRunner

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
    },
    "small": {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}
"""`small` is for rehearsals, and for parity, where large random weights give answers with wide margins."""


class StateDict:
    """The engine's `Weights` of a transformers model in memory."""

    def __init__(self, model: LlamaForCausalLM) -> None:
        tensors = model.state_dict().items()
        self._tensors = {name.removeprefix("model."): tensor for name, tensor in tensors if name != "lm_head.weight"}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See engine.model.checkpoint.Weights."""
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """See engine.model.checkpoint.Weights; already on the device."""
        return self._tensors[name].to(dtype)


def reference_model(
    shape: str, device: str, dtype: torch.dtype, seed: int, initializer_range: float = 0.02
) -> LlamaForCausalLM:
    """transformers' model with random weights and tied embeddings, which never ends an answer on its own."""
    config = LlamaConfig(
        **SHAPES[shape],
        max_position_embeddings=131072,
        rope_parameters=dict(LLAMA3_ROPE),
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        initializer_range=initializer_range,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    torch.manual_seed(seed)
    with torch.device(device):
        model = LlamaForCausalLM(config).to(dtype)
    model.generation_config.eos_token_id = None
    return model.eval().requires_grad_(False)


def our_runner(
    model: LlamaForCausalLM, device: str, dtype: torch.dtype, use_graphs: bool | None = None, route: str = "gather"
) -> TorchRunner:
    """Our model with the same weights, on a pool of one block: each engine makes its own."""
    config = ModelConfig.from_hf(model.config.to_dict())
    ours = assemble(config, StateDict(model), dtype, device, quantization="none").model
    return TorchRunner(ours, 1, 16, dtype, device, use_graphs=use_graphs, decode_route=route)
