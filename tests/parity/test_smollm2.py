"""The real model: logits and greedy tokens of SmolLM2 equal transformers' in float32."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.model import generate
from engine.model.attention import FullAttention
from engine.model.checkpoint import load
from engine.model.llama import Llama
from tests import real_model

LENGTHS = [*range(1, 19), 24, 31, 32, 33, 40, 47, 48, 49, 64, 65, 80, 100]
"""Around block sizes, and far beyond; thirty in all."""
NUM_NEW_TOKENS = 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two of torch's threads are ten times slower than one where another process holds a core, as in a test run."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


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
@pytest.mark.parametrize("part", [slice(0, 10), slice(10, 20), slice(20, 30)])
@torch.inference_mode()
def test_thirty_prompts(model: Llama, part: slice) -> None:
    """Ten prompts at once; transformers is shown each prompt with our answer, and must have chosen the same tokens."""
    reference = real_model.smollm2_reference()
    asked = [prompt(row, length) for row, length in enumerate(LENGTHS)][part]
    answers = generate.static_batch_kv(model, asked, NUM_NEW_TOKENS, (2,)).token_ids
    for ids, answer in zip(asked, answers, strict=True):
        tokens = torch.tensor([*ids, *answer])
        theirs = reference(tokens[None]).logits[0]
        ours = model.logits(model(tokens, torch.arange(len(tokens)), FullAttention()))
        assert (ours - theirs).abs().max() < 1e-4, f"logits of the prompt of {len(ids)} tokens"
        assert answer == theirs[len(ids) - 1 : -1].argmax(dim=-1).tolist(), f"answer to {len(ids)} tokens"
        assert len(answer) == NUM_NEW_TOKENS or answer[-1] == 2


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
