"""What a model is: its sizes, its RoPE, its end-of-sequence ids, read from a Hugging Face `config.json`.

Owns the meaning of a config's keys in every spelling that published checkpoints use, and the refusal of what this
engine cannot compute exactly. Never knows tensors, files of weights or requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.errors import ModelError
from engine.model.rope import RopeParameters

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

MAX_JSON_BYTES = 16 * 2**20
"""A config or an index larger than this is not one; reading it would only waste memory."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and switches of a decoder-only transformer, in Hugging Face's names.

    `attention_bias` is the bias of the q, k and v projections, `attention_output_bias` that of o_proj (Qwen2 has the
    first alone). `qk_norm` is Qwen3's RMSNorm over each head of q and k. `dtype` is the checkpoint's own, for example
    "bfloat16". `eos_token_ids` are all ids that end an answer.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeParameters
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    dtype: str = "float32"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _SIZES[name]:
                raise ModelError(f"config: {name} must be a whole number from 1 to {_SIZES[name]}, got {value!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelError(
                f"config: num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise ModelError(f"config: head_dim must be even for rotary embeddings, got {self.head_dim}")
        if not isinstance(self.rms_norm_eps, (int, float)) or not 0 < self.rms_norm_eps < 1:
            raise ModelError(f"config: rms_norm_eps must be a number between 0 and 1, got {self.rms_norm_eps!r}")

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> ModelConfig:
        """Read a `config.json`'s content, and a `generation_config.json`'s for the end-of-sequence ids.

        Raises ModelError, in one line, for an architecture, an activation or a RoPE type that isn't implemented, and
        for sizes that are missing or impossible.
        """
        architecture = _architecture(config)
        _refuse_what_is_not_computed(config)
        num_heads = _size(config, "num_attention_heads")
        hidden_size = _size(config, "hidden_size")
        is_qwen2, is_qwen3 = architecture == "Qwen2ForCausalLM", architecture == "Qwen3ForCausalLM"
        head_dim = config.get("head_dim") or (128 if is_qwen3 else hidden_size // num_heads)
        bias = bool(config.get("attention_bias", False))
        max_positions = _size(config, "max_position_embeddings", 2048)
        return cls(
            architecture=architecture,
            vocab_size=_size(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=_size(config, "intermediate_size"),
            num_hidden_layers=_size(config, "num_hidden_layers"),
            num_attention_heads=num_heads,
            num_key_value_heads=config.get("num_key_value_heads") or num_heads,
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            rope=RopeParameters.from_hf(config, max_positions),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            attention_bias=bias or is_qwen2,
            attention_output_bias=bias and not is_qwen2,
            mlp_bias=bool(config.get("mlp_bias", False)) and not (is_qwen2 or is_qwen3),
            qk_norm=is_qwen3,
            dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch."),
            bos_token_id=_token_id(config.get("bos_token_id")),
            eos_token_ids=_eos_token_ids(config, generation_config or {}),
        )

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `config.json` and, if it is there, `generation_config.json`. Raises ModelError."""
        generation_file = folder / "generation_config.json"
        generation_config = read_json_object(generation_file) if generation_file.is_file() else None
        return cls.from_hf(read_json_object(folder / "config.json"), generation_config)


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a small file. Raises ModelError when it is absent, too large, or no JSON object."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelError(f"{path.name} is larger than {MAX_JSON_BYTES} bytes; it cannot be what its name says")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path.name} is missing in {path.parent}; is this a Hugging Face model folder?") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path} must hold a JSON object, not a {type(content).__name__}")
    return content


_SIZES = {
    "vocab_size": 2**24,
    "hidden_size": 2**20,
    "intermediate_size": 2**22,
    "num_hidden_layers": 2**12,
    "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**14,
    "max_position_embeddings": 2**30,
}
"""Each size with the largest value that is believed: far above any published model, far below what would hang."""


def _architecture(config: Mapping[str, Any]) -> str:
    """The one architecture, from `architectures` or, in hand-made files, from `model_type`."""
    names = config.get("architectures") or []
    by_type = {"llama": ARCHITECTURES[0], "qwen2": ARCHITECTURES[1], "qwen3": ARCHITECTURES[2]}
    name = names[0] if isinstance(names, list) and names else by_type.get(str(config.get("model_type")))
    if name not in ARCHITECTURES:
        shown = name or config.get("model_type") or "none given"
        raise ModelError(f"architecture {shown} is not supported; this engine computes {', '.join(ARCHITECTURES)}")
    return str(name)


def _refuse_what_is_not_computed(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"hidden_act {activation!r} is not supported; this engine computes silu (SwiGLU)")
    layer_types = config.get("layer_types") or []
    if config.get("use_sliding_window") or any(kind != "full_attention" for kind in layer_types):
        raise ModelError("sliding-window attention is not supported; this engine attends to the full context")
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise ModelError(f"quantized checkpoints ({method}) are not supported; use the unquantized one or a .gguf file")


def _size(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"config: {name} must be a whole number of at least 1, got {value!r}")
    return value


def _eos_token_ids(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    """All ids that end an answer; `generation_config.json` wins, for Llama 3.x lists its three ids only there."""
    value = generation_config.get("eos_token_id")
    if value is None:
        value = config.get("eos_token_id")
    listed = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(token for token in map(_token_id, listed) if token is not None))


def _token_id(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
