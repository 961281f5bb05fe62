"""The real model: logits and greedy tokens of SmolLM2 equal transformers' in float32."""

from pathlib import Path

import pytest
import torch

from engine.model import generate
from engine.model.attention import FullAttention
from engine.model.checkpoint import load
from engine.model.llama import Llama
from tests import real_model

LENGTHS = [*range(1, 19), 24, 31, 32, 33, 40, 47, 48, 49, 64, 65, 100, 200]
NUM_NEW_TOKENS = 4


@pytest.fixture(scope="session")
def path() -> Path:
    return real_model.smollm2_gguf()


@pytest.fixture(scope="session")
def model(path: Path) -> Llama:
    return load(path, torch.float32)[0]


def prompt(row: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(row)
    ids: list[int] = torch.randint(3, 49152, (length,), generator=generator).tolist()
    return ids


@pytest.mark.slow
@torch.inference_mode()
def test_thirty_prompts(model: Llama) -> None:
    reference = real_model.smollm2_reference()
    assert len(LENGTHS) == 30
    for row, length in enumerate(LENGTHS):
        ids = prompt(row, length)
        tokens = torch.tensor(ids)
        answer = reference.generate(
            tokens[None],
            attention_mask=torch.ones_like(tokens[None]),
            do_sample=False,
            max_new_tokens=NUM_NEW_TOKENS,
            pad_token_id=2,
            output_logits=True,
            return_dict_in_generate=True,
        )
        ours = model.logits(model(tokens, torch.arange(length), FullAttention())[-1:])
        assert (ours - answer.logits[0]).abs().max() < 1e-4, f"logits of the prompt of {length} tokens"
        new_tokens = generate.singleton_kv(model, [ids], NUM_NEW_TOKENS, (2,)).token_ids[0]
        assert new_tokens == answer.sequences[0, length:].tolist(), f"answer to the prompt of {length} tokens"


@torch.inference_mode()
def test_logits_at_every_position(model: Llama) -> None:
    ids = torch.tensor(prompt(99, 120))
    ours = model.logits(model(ids, torch.arange(120), FullAttention()))
    theirs = real_model.smollm2_reference()(ids[None]).logits[0]
    assert (ours - theirs).abs().max() < 1e-4


def test_modes_agree_on_the_real_model(model: Llama) -> None:
    asked = [prompt(1, 9), prompt(2, 40), prompt(3, 3)]
    alone = generate.singleton_kv(model, asked, 5).token_ids
    assert generate.static_batch_kv(model, asked, 5).token_ids == alone
    assert generate.static_batch_no_kv(model, asked, 5).token_ids == alone
