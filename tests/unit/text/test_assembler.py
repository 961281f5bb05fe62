"""An answer's text from its tokens: what shows, when, and where it ends."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.text.assembler import TextAssembler, stop_checker
from engine.text.tokenizer import Tokenizer
from tests import tiny_models
from tests.tiny_models import token_ids
from tests.unit.text import tokenizers_on_disk as on_disk

EOS1 = 1


@pytest.fixture(scope="session")
def tok(tmp_path_factory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tok")
    tiny_models.save_tokenizer(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2, 3]}')
    return Tokenizer.load(folder)


@pytest.fixture(scope="session")
def llama2(tmp_path_factory) -> Tokenizer:
    return Tokenizer.load(on_disk.llama2_style(tmp_path_factory.mktemp("llama2")))


def run(tokenizer: Tokenizer, ids: list[int], stop: list[str], min_tokens: int = 0) -> tuple[list[str], int | None]:
    """The text each token adds and what the end adds; after how many tokens the text stopped."""
    assembler = TextAssembler(tokenizer, stop, min_tokens)
    deltas = [assembler.push(i) for i in ids]
    stopped = next((n for n, delta in enumerate(deltas, 1) if delta.stopped), None)
    return [*(delta.text for delta in deltas), assembler.finish()], stopped


def test_a_stop_string_over_a_token_boundary(tok):
    texts, stopped = run(tok, token_ids("one two"), ["e t"])
    assert "".join(texts) == "on"
    assert stopped == 5


def test_held_back_text_comes_with_the_end(tok):
    assert "".join(run(tok, [*token_ids("wxyz"), EOS1], ["z!"])[0]) == "wxyz"
    assert "".join(run(tok, token_ids("wxyz"), ["z!"])[0]) == "wxyz"


def test_a_stop_string_that_never_begins_holds_nothing_back(tok):
    assert run(tok, token_ids("flow"), ["#" * 40])[0] == ["f", "l", "o", "w", ""]


def test_stop_strings_of_several_bytes_a_character(tok):
    texts, stopped = run(tok, token_ids("a😀é你b"), ["é你"])
    assert "".join(texts) == "a😀"
    assert stopped == 1 + 4 + 2 + 3


def test_the_stop_that_begins_first_cuts(tok):
    assert "".join(run(tok, token_ids("abcd"), ["d", "bcd"])[0]) == "a"


def test_a_stop_string_that_is_a_special_token(tok):
    ids = [*token_ids("ab"), EOS1, *token_ids("cd")]
    texts, stopped = run(tok, ids, ["<|eos1|>"])
    assert ("".join(texts), stopped) == ("ab", 3)
    texts, stopped = run(tok, ids, ["b<|eos1|>c"])
    assert ("".join(texts), stopped) == ("a", 4)
    texts, stopped = run(tok, ids, ["<|eos2|>"])
    assert ("".join(texts), stopped) == ("abcd", None)


def test_the_text_of_a_special_token_written_out_also_stops(tok):
    texts, stopped = run(tok, token_ids("ab<|eos1|>c"), ["<|eos1|>"])
    assert ("".join(texts), stopped) == ("ab", 2 + len("<|eos1|>"))


def test_hidden_tokens_do_not_keep_a_stop_string_apart(tok):
    assert "".join(run(tok, [*token_ids("xa"), EOS1, *token_ids("by")], ["ab"])[0]) == "x"


@pytest.mark.parametrize("stop", [[], [""]])
def test_no_stop_strings(tok, stop):
    texts, stopped = run(tok, [*token_ids("é\n"), EOS1], stop)
    assert ("".join(texts), stopped) == ("é\n", None)
    assert stop_checker(tok, []) is None


def test_after_a_stop_nothing_comes(tok):
    assembler = TextAssembler(tok, ["b"])
    deltas = [assembler.push(i) for i in token_ids("abcd")]
    assert [(d.text, d.stopped) for d in deltas] == [("a", False), ("", True), ("", True), ("", True)]
    assert assembler.finish() == ""


def test_the_first_tokens_cannot_stop_when_a_minimum_is_asked(tok):
    texts, stopped = run(tok, token_ids("abab"), ["ab"], min_tokens=2)
    assert ("".join(texts), stopped) == ("ab", 4)
    assert run(tok, token_ids("abab"), ["ab"], min_tokens=1)[1] == 4
    assert run(tok, token_ids("abab"), ["ab"], min_tokens=4) == (["a", "b", "a", "b", ""], None)


@pytest.mark.parametrize("text", [" ,a n't .", "\n\n a \n", " a  b c", "a"])
def test_spaces_are_left_as_they_are(tok, llama2, text):
    for tokenizer in (tok, llama2):
        assert "".join(run(tokenizer, tokenizer.encode(text), ["~~"])[0]) == text


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ids=st.lists(st.sampled_from([EOS1, *token_ids("ab<é|")]), max_size=30),
    stop=st.lists(st.sampled_from(["a", "ab", "é", "bé<", "<|eos1|>", "a<|eos1|>b", "zz"]), max_size=3),
    min_tokens=st.integers(0, 5),
)
def test_the_engines_check_agrees_with_the_text(tok, ids, stop, min_tokens):
    texts, stopped = run(tok, ids, stop, min_tokens)
    checker = stop_checker(tok, stop, min_tokens) or (lambda token_id: False)
    answers = [checker(i) for i in ids]
    assert (answers.index(True) + 1 if True in answers else None) == stopped
    until = ids if stopped is None else ids[:stopped]
    whole = "".join(run(tok, until, [], 0)[0])
    assert whole.startswith("".join(texts))
    if stopped is None:
        assert whole == "".join(texts)
