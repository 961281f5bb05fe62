"""The offline modes say what transformers says, and count the work that batching wastes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.model import generate
from engine.model.checkpoint import load
from engine.model.llama import Llama
from tests import tiny_models

MODES = [
    generate.singleton_no_kv,
    generate.singleton_kv,
    generate.static_batch_no_kv,
    generate.static_batch_kv,
]
Mode = Callable[..., generate.Generation]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.rand(tmp_path_factory.mktemp("rand"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Llama:
    return load(folder, torch.float32)[0]


def prompts(*lengths: int) -> list[list[int]]:
    return [
        [4 + (37 * row + 11 * index * index + 5 * index) % 256 for index in range(n)] for row, n in enumerate(lengths)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_answers_as_transformers_does_for_each_prompt_alone(mode: Mode, model: Llama, folder: Path) -> None:
    asked = prompts(1, 30, 7, 90, 150)
    answers = mode(model, asked, 10, tiny_models.EOS_IDS).token_ids
    assert answers == [tiny_models.oracle(folder, prompt, 10) for prompt in asked]


@pytest.mark.parametrize("mode", MODES)
def test_hist_shows_that_no_row_sees_padding_or_a_neighbour(mode: Mode, tmp_path: Path) -> None:
    folder = tiny_models.hist(tmp_path)
    model, _ = load(folder, torch.float32)
    asked = prompts(3, 40, 12)
    answers = mode(model, asked, 12, tiny_models.EOS_IDS).token_ids
    assert answers == [tiny_models.oracle(folder, prompt, 12) for prompt in asked]


@pytest.mark.parametrize("mode", MODES)
def test_a_row_that_ended_keeps_its_answer_while_others_go_on(mode: Mode, tmp_path: Path) -> None:
    model, config = load(tiny_models.chain(tmp_path, "wxyz", eos=2), torch.float32)
    w, x, y, z = tiny_models.token_ids("wxyz")
    asked = [[x], [4, 5, w], [z], [4, 4, 4, 4]]
    result = mode(model, asked, 4, config.eos_token_ids)
    assert result.token_ids == [[y, z, 2], [x, y, z, 2], [2], [w, x, y, z]]


@pytest.mark.parametrize("mode", MODES)
def test_without_ids_that_end_it_every_answer_has_full_length(mode: Mode, tmp_path: Path) -> None:
    model, _ = load(tiny_models.chain(tmp_path, "z", eos=2), torch.float32)
    assert [len(answer) for answer in mode(model, [[4], [5, 6]], 6).token_ids] == [6, 6]


def test_the_work_of_each_mode(tmp_path: Path) -> None:
    """Two prompts of 3 and 5 tokens whose answers have 2 and 4: counted by hand."""
    model, config = load(tiny_models.chain(tmp_path, "abcd", eos=1), torch.float32)
    a, _, c, d = tiny_models.token_ids("abcd")
    asked = [[9, 9, c], [9, 9, 9, 9, a]]
    runs = {mode.__name__: mode(model, asked, 10, config.eos_token_ids) for mode in MODES}
    assert {tuple(map(len, run.token_ids)) for run in runs.values()} == {(2, 4)}
    assert runs["singleton_kv"].token_ids[0] == [d, 1]
    assert runs["singleton_no_kv"].num_computed_tokens == (3 + 4) + (5 + 6 + 7 + 8)
    assert runs["singleton_kv"].num_computed_tokens == (3 + 1) + (5 + 1 + 1 + 1)
    assert runs["static_batch_no_kv"].num_computed_tokens == 2 * (5 + 6 + 7 + 8)
    assert runs["static_batch_kv"].num_computed_tokens == 2 * (5 + 1 + 1 + 1)
    assert runs["singleton_no_kv"].num_wasted_tokens == runs["singleton_kv"].num_wasted_tokens == 0
    assert runs["static_batch_kv"].num_wasted_tokens == 2 + 0 + 1 + 1  # padding, then an inactive slot twice
    assert runs["static_batch_no_kv"].num_wasted_tokens == 2 + 2 + (2 + 1) + (2 + 2)
    assert [run.num_steps for run in runs.values()] == [6, 6, 4, 4]


def test_positions_start_at_each_rows_first_real_token() -> None:
    positions = generate.logical_positions(torch.tensor([0, 2]), start=0, num_new=4)
    assert positions.tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]
    assert generate.logical_positions(torch.tensor([0, 2]), start=4, num_new=1).tolist() == [[4], [2]]


@pytest.mark.parametrize("mode", MODES)
def test_impossible_calls_are_refused(mode: Mode, model: Llama) -> None:
    for asked, count, words in (
        ([], 1, "at least one prompt"),
        ([[1], []], 1, "no empty one"),
        ([[1]], 0, "max_new_tokens must be at least 1"),
        ([[1] * 8190], 3, "prompt \\+ max_new_tokens is 8193, the model's context is 8192"),
    ):
        with pytest.raises(ValueError, match=words):
            mode(model, asked, count)


def test_no_gradients_are_recorded(model: Llama) -> None:
    generate.static_batch_kv(model, prompts(4, 5), 2)
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())
