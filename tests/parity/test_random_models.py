"""Logits and greedy tokens of small random models equal transformers', in float32, for every variant."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.model import generate
from engine.model.attention import DenseCacheAttention, FullAttention
from engine.model.checkpoint import load
from tests import tiny_models

TOLERANCE = 1e-4
VARIANTS: dict[str, dict[str, Any]] = {
    "llama3 rope": {},
    "plain rope": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "untied": {"tie_word_embeddings": False},
    "attention bias": {"attention_bias": True},
    "mlp bias": {"mlp_bias": True},
    "explicit head size": {"head_dim": 24},
    "one key head": {"num_key_value_heads": 1},
    "no grouping": {"num_key_value_heads": 4},
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3"},
    "qwen3 wide heads": {"architecture": "qwen3", "head_dim": 32},
    "shards": {"max_shard_size": "100KB"},
}


@pytest.fixture(scope="module", params=VARIANTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.rand(tmp_path_factory.mktemp("model"), **VARIANTS[request.param])


def prompt(length: int) -> list[int]:
    return [4 + (11 * index * index + 5 * index) % 256 for index in range(length)]


@torch.inference_mode()
def test_logits_of_a_long_prompt(folder: Path) -> None:
    """150 tokens: beyond the original context of 64, so all three bands of llama3's scaling matter."""
    model, _ = load(folder, torch.float32)
    ids = torch.tensor(prompt(150))
    ours = model.logits(model(ids, torch.arange(150), FullAttention()))
    theirs = tiny_models.reference_model(folder)(ids[None]).logits[0]
    assert ours.dtype == torch.float32
    assert (ours - theirs).abs().max() < TOLERANCE


@torch.inference_mode()
@pytest.mark.parametrize("chunks", [[150], [60, 60, 30], [1] * 20 + [129, 1], [149, 1]])
def test_logits_of_a_prompt_in_chunks_through_the_cache(folder: Path, chunks: list[int]) -> None:
    model, config = load(folder, torch.float32)
    ids = torch.tensor(prompt(sum(chunks)))
    cache = DenseCacheAttention(config, torch.tensor([0]), len(ids))
    parts = []
    for chunk in chunks:
        start = cache.current_length()
        span = torch.arange(start, start + chunk)
        parts.append(model.logits(model(ids[span], span, cache)))
    theirs = tiny_models.reference_model(folder)(ids[None]).logits[0]
    assert (torch.cat(parts) - theirs).abs().max() < TOLERANCE


def test_greedy_tokens(folder: Path) -> None:
    model, config = load(folder, torch.float32)
    asked = [prompt(length) for length in (1, 5, 64, 150)]
    answers = generate.static_batch_kv(model, asked, 16, config.eos_token_ids).token_ids
    assert answers == [tiny_models.oracle(folder, ids, 16) for ids in asked]


@torch.inference_mode()
def test_three_spellings_of_rope_give_the_same_logits(tmp_path: Path) -> None:
    folder = tiny_models.rand(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    newest = config["rope_parameters"]
    scaling = {key: value for key, value in newest.items() if key not in ("rope_theta", "rope_type")}
    without = {key: value for key, value in config.items() if key != "rope_parameters"}
    theta = {"rope_theta": newest["rope_theta"]}
    spellings = [
        config,
        without | theta | {"rope_scaling": {"rope_type": "llama3"} | scaling},
        without | theta | {"rope_scaling": {"type": "llama3"} | scaling, "torch_dtype": "float32"},
    ]
    ids = torch.tensor(prompt(150))
    expected = tiny_models.reference_model(folder)(ids[None]).logits[0]
    for spelling in spellings:
        (folder / "config.json").write_text(json.dumps(spelling))
        model, _ = load(folder, torch.float32)
        assert (model.logits(model(ids, torch.arange(150), FullAttention())) - expected).abs().max() < TOLERANCE


@torch.inference_mode()
def test_unscaled_rope_would_be_seen(tmp_path: Path) -> None:
    """The tolerance can tell the difference that the tests above are there for."""
    folder = tiny_models.rand(tmp_path / "model")
    model, config = load(folder, torch.float32)
    ids = torch.tensor(prompt(150))
    theirs = tiny_models.reference_model(folder)(ids[None]).logits[0]
    rope = dataclasses.replace(config.rope, rope_type="default")
    model.rotary = type(model.rotary)(rope, config.head_dim)
    ours = model.logits(model(ids, torch.arange(150), FullAttention()))
    assert (ours - theirs).abs().max() > 1.0


@pytest.mark.parametrize("position", [0, 4000, 8000])
@torch.inference_mode()
def test_bfloat16_far_into_the_context(tmp_path: Path, position: int) -> None:
    """cos and sin stay in float32 until the last cast; in bfloat16 angles at 4000 would be off by whole radians."""
    folder = tiny_models.rand(tmp_path / "model", initializer_range=0.1)
    model, _ = load(folder, torch.bfloat16)
    reference = tiny_models.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    ids, positions = torch.tensor(prompt(64)), torch.arange(position, position + 64)
    ours = model.logits(model(ids, positions, FullAttention()))
    theirs = reference(ids[None], position_ids=positions[None]).logits[0].float()
    exact = tiny_models.reference_model(folder)(ids[None], position_ids=positions[None]).logits[0]
    rounding = (theirs - exact).abs().max()
    assert (ours - exact).abs().max() <= 1.5 * rounding
    assert rounding < 0.1 * exact.abs().max()
