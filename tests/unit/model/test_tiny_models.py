"""The small models are what their descriptions promise; every other test leans on that."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from engine.model import generate
from engine.model.attention import FullAttention
from engine.model.checkpoint import load
from tests import tiny_models
from tests.tiny_models import EOS_IDS, NUM_TOKENS, token_ids


@torch.inference_mode()
def logits(folder: Path, ids: list[int]) -> torch.Tensor:
    model, _ = load(folder, torch.float32)
    return model.logits(model(torch.tensor(ids), torch.arange(len(ids)), FullAttention()))


def answer(folder: Path, ids: list[int], max_new_tokens: int) -> list[int]:
    model, config = load(folder, torch.float32)
    return generate.singleton_kv(model, [ids], max_new_tokens, config.eos_token_ids).token_ids[0]


def test_the_tokenizer_is_one_token_a_byte_and_round_trips(tmp_path: Path) -> None:
    tiny_models.save_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == NUM_TOKENS
    for text, num_tokens in (("abc", 3), ("é", 2), ("🙂", 4), ("漢", 3), (" n't ,\n\n", 8)):
        ids = tokenizer.encode(text)
        assert ids == token_ids(text)
        assert len(ids) == num_tokens
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("<|bos|>a<|eos3|>") == [0, *token_ids("a"), 3]


@pytest.mark.parametrize("text", ["wxyz", "é🙂漢", "one two"])
def test_chain_says_its_script_after_any_prompt(tmp_path: Path, text: str) -> None:
    eos = None if text == "one two" else 3
    folder = tiny_models.chain(tmp_path, text, eos=eos)
    expected = token_ids(text) + ([3] if eos else [])
    for prompt in ([200], [0, 9, 9, 9], token_ids("?") * 70):
        assert answer(folder, prompt, len(expected)) == expected
        assert tiny_models.oracle(folder, prompt, len(expected)) == expected


def test_chain_refuses_a_script_no_automaton_can_say(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="followed by both"):
        tiny_models.chain(tmp_path, "abac")


def test_hist_depends_on_which_tokens_but_not_on_their_order(tmp_path: Path) -> None:
    folder = tiny_models.hist(tmp_path)
    ids = token_ids("the quick brown fox jumps over")
    last = logits(folder, ids)[-1]
    shuffled = [*reversed(ids[:-1]), ids[-1]]
    assert torch.allclose(logits(folder, shuffled)[-1], last, atol=1e-4)
    for changed in (ids[1:], [ids[0], *ids], [token_ids("Z")[0], *ids[1:]]):
        assert (logits(folder, changed)[-1] - last).abs().max() > 0.1


def test_rand_depends_on_every_token_of_a_long_prompt(tmp_path: Path) -> None:
    folder = tiny_models.rand(tmp_path)
    ids = [4 + (13 * index) % 256 for index in range(120)]
    last = logits(folder, ids)[-1]
    for position in (0, 1, 60, 118):
        changed = [*ids[:position], 4 + (ids[position] + 1 - 4) % 256, *ids[position + 1 :]]
        assert (logits(folder, changed)[-1] - last).abs().max() > 1e-3


def test_rand_with_a_padded_vocabulary_tempts_whoever_forgets_to_mask(tmp_path: Path) -> None:
    folder = tiny_models.rand(tmp_path, vocab_size=288)
    ids = token_ids("hello")
    assert int(logits(folder, ids)[-1].argmax()) >= NUM_TOKENS
    assert all(token < NUM_TOKENS for token in tiny_models.oracle(folder, ids, 10))


def test_poison_harms_only_those_who_hold_it(tmp_path: Path) -> None:
    folder = tiny_models.poison(tmp_path)
    assert torch.isfinite(logits(folder, token_ids("hello"))).all()
    assert torch.isnan(logits(folder, token_ids("he!lo"))[2:]).all()
    assert token_ids("!")[0] not in answer(folder, token_ids("hello"), 60)


def test_the_oracle_stops_at_any_end_of_sequence_id(tmp_path: Path) -> None:
    folder = tiny_models.chain(tmp_path, "ab", eos=EOS_IDS[2])
    assert tiny_models.oracle(folder, [50], 10) == [*token_ids("ab"), EOS_IDS[2]]
