"""What a config.json means, in every spelling, and which ones are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.model.checkpoint import check_names_and_shapes, empty_model
from engine.model.config import ModelConfig
from engine.model.errors import ModelError

CONFIGS = Path(__file__).parent / "configs"

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read(**changes: Any) -> ModelConfig:
    return ModelConfig.from_hf(SMALL | changes)


@pytest.mark.parametrize(
    ("name", "head_dim", "num_parameters", "rope_type"),
    [
        ("llama-3.2-1b-instruct", 64, 1_235_814_400, "llama3"),
        ("llama-3.2-3b-instruct", 128, 3_212_749_824, "llama3"),
        ("llama-3.1-8b-instruct", 128, 8_030_261_248, "llama3"),
        ("smollm2-135m-instruct", 64, 134_515_008, "default"),
        ("smollm2-360m-instruct", 64, 361_821_120, "default"),
        ("smollm2-1.7b-instruct", 64, 1_711_376_384, "default"),
        ("tinyllama-1.1b-chat", 64, 1_100_048_384, "default"),
    ],
)
def test_published_configs_give_models_of_the_published_size(
    name: str, head_dim: int, num_parameters: int, rope_type: str
) -> None:
    config = ModelConfig.from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))
    model = empty_model(config)
    assert config.head_dim == head_dim
    assert config.rope.rope_type == rope_type
    assert config.dtype == "bfloat16"
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters
    assert all(parameter.device.type == "meta" for parameter in model.parameters())
    check_names_and_shapes(model, transformers_shapes(name), config)  # raises when a name or a shape differs


def transformers_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """The tensors a published checkpoint of this config holds, by transformers' account."""
    with torch.device("meta"):
        reference = LlamaForCausalLM(LlamaConfig.from_pretrained(CONFIGS / f"{name}.json"))
    return {name.removeprefix("model."): tuple(tensor.shape) for name, tensor in reference.state_dict().items()}


def test_three_spellings_of_rope_mean_the_same() -> None:
    old = read(rope_theta=10000.0, rope_scaling={"type": "llama3", **LLAMA3})
    newer = read(rope_theta=10000.0, rope_scaling={"rope_type": "llama3", **LLAMA3})
    newest = read(rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, **LLAMA3})
    assert old.rope == newer.rope == newest.rope
    assert old.rope.rope_type == "llama3"


def test_null_scaling_is_plain_rope_with_its_own_theta() -> None:
    config = read(rope_scaling=None, rope_theta=123456.0)
    assert config.rope.rope_type == "default"
    assert config.rope.rope_theta == 123456.0


def test_the_theta_inside_rope_parameters_wins_over_a_stale_one_beside_it() -> None:
    assert read(rope_theta=1.0, rope_parameters={"rope_type": "default", "rope_theta": 5e5}).rope.rope_theta == 5e5


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope", "su", "something new"])
def test_unknown_rope_types_are_refused_by_name(kind: str) -> None:
    with pytest.raises(ModelError, match=kind):
        read(rope_scaling={"rope_type": kind, "factor": 4.0})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported"),
        ({"architectures": None, "model_type": "gemma3"}, "gemma3 is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"hidden_size": None}, "hidden_size must be a whole number"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number"),
        ({"vocab_size": -1}, "vocab_size must be a whole number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number from 1 to"),
        ({"num_key_value_heads": 3}, "must be a multiple of"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps must be a number"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"use_sliding_window": True}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor must be a positive number"),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "must be more than"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor must be a positive number"),
        ({"rope_theta": "big"}, "rope_theta must be a positive number"),
        ({"rope_scaling": [1, 2]}, "must be an object"),
    ],
)
def test_what_cannot_be_computed_is_refused_in_one_line(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as refusal:
        read(**changes)
    assert "\n" not in str(refusal.value)


def test_qwen_differs_from_llama_by_biases_and_head_norms() -> None:
    qwen2 = read(architectures=["Qwen2ForCausalLM"])
    qwen3 = read(architectures=["Qwen3ForCausalLM"])
    assert (qwen2.attention_bias, qwen2.attention_output_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.attention_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)
    assert read().head_dim == 16


def test_the_generation_config_names_all_end_of_sequence_ids() -> None:
    assert ModelConfig.from_hf(SMALL | {"eos_token_id": 1}, {"eos_token_id": [1, 2, 3]}).eos_token_ids == (1, 2, 3)
    assert ModelConfig.from_hf(SMALL | {"eos_token_id": 1}, {"eos_token_id": 2}).eos_token_ids == (2,)
    assert ModelConfig.from_hf(SMALL | {"eos_token_id": [3, 1]}).eos_token_ids == (3, 1)
    assert ModelConfig.from_hf(SMALL | {"eos_token_id": 1}, {}).eos_token_ids == (1,)
    assert ModelConfig.from_hf(SMALL | {"eos_token_id": None}).eos_token_ids == ()


def test_a_folder_without_generation_config_uses_config_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"eos_token_id": [5, 6]}))
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == (5, 6)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": NaN', "[" * 100_000, "\x00\xff"])
def test_a_damaged_config_json_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ModelError, match=r"config\.json"):
        ModelConfig.from_folder(tmp_path)


def test_a_missing_or_huge_config_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        ModelConfig.from_folder(tmp_path)
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(ModelError, match="larger than"):
        ModelConfig.from_folder(tmp_path)


def test_dtype_is_read_under_both_names() -> None:
    assert read(torch_dtype="float16").dtype == "float16"
    assert read(dtype="bfloat16", torch_dtype="float16").dtype == "bfloat16"
    assert getattr(torch, read(dtype="torch.bfloat16").dtype) is torch.bfloat16
