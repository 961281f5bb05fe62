"""Pieces of text that arrive one by one, against the whole text decoded at once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine.text.detokenizer import ByteDetokenizer, WindowDetokenizer, make_detokenizer
from engine.text.tokenizer import Tokenizer
from tests import tiny_models
from tests.unit.text import tokenizers_on_disk as on_disk

SENTENCES = [
    "a b c",
    " a  b",
    "héllo 你好 😀 wörld",
    "it 's , fine ; do n't . trim ! \n\n",
    "\n\n leading and trailing \t ",
    "👩‍👩‍👧‍👦 e\u0301 \u200b½ 𝔘𝔫𝔦",
    "",
    " ",
    "\ufffd really a replacement character \ufffd",
]


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory) -> dict[str, Tokenizer]:
    root = tmp_path_factory.mktemp("tokenizers")
    tiny_models.save_tokenizer(root / "tok")
    on_disk.byte_level(root / "byte_level")
    on_disk.llama2_style(root / "llama2")
    on_disk.metaspace(root / "metaspace")
    return {folder.name: Tokenizer.load(folder) for folder in sorted(root.iterdir())}


FAMILIES = ["tok", "byte_level", "llama2", "metaspace"]


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> tuple[list[str], str]:
    detokenizer = make_detokenizer(tokenizer)
    return [detokenizer.push(i) for i in ids], detokenizer.flush()


def test_each_family_takes_its_way(tokenizers):
    kinds = [type(make_detokenizer(tokenizers[name])) for name in FAMILIES]
    assert kinds == [ByteDetokenizer, ByteDetokenizer, WindowDetokenizer, WindowDetokenizer]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", SENTENCES)
def test_joined_pieces_are_the_full_text(tokenizers, family, text):
    tokenizer = tokenizers[family]
    ids = tokenizer.encode(text)
    pieces, rest = pieces_of(tokenizer, ids)
    assert "".join(pieces) + rest == tokenizer.decode(ids)
    if family != "metaspace":  # the one family here that cannot spell every text
        assert "".join(pieces) + rest == text
    if "\ufffd" not in tokenizer.decode(ids):
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("way", [ByteDetokenizer, WindowDetokenizer])
def test_a_character_appears_with_its_last_byte(tokenizers, way):
    detokenizer = way(tokenizers["tok"])
    pieces = [detokenizer.push(i) for i in tiny_models.token_ids("é你😀!")]
    assert pieces == ["", "é", "", "", "你", "", "", "", "😀", "!"]
    assert detokenizer.flush() == ""


@pytest.mark.parametrize("family", ["tok", "llama2"])
@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_a_character_cut_off_at_the_end_never_shows(tokenizers, family, num_bytes):
    tokenizer = tokenizers[family]
    ids = tokenizer.encode("a😀", add_special_tokens=False)
    cut = ids[: len(ids) - 4 + num_bytes]
    pieces, rest = pieces_of(tokenizer, cut)
    assert "".join(pieces) + rest == "a"


@pytest.mark.parametrize("family", ["tok", "llama2"])
def test_bytes_that_are_no_character_show_once_that_is_certain(tokenizers, family):
    """A lone continuation byte before a letter: the text says so, as the full decoding does."""
    tokenizer = tokenizers[family]
    byte = {"tok": 4 + 0x80, "llama2": 3 + 0x80}[family]
    ids = [*tokenizer.encode("a", add_special_tokens=False), byte, *tokenizer.encode("b", add_special_tokens=False)]
    pieces, rest = pieces_of(tokenizer, ids)
    assert "".join(pieces) + rest == tokenizer.decode(ids)
    assert "\ufffd" in "".join(pieces)


@pytest.mark.parametrize("family", ["tok", "llama2"])
def test_endless_broken_bytes_are_not_held_back(tokenizers, family):
    tokenizer = tokenizers[family]
    byte = {"tok": 4 + 0x80, "llama2": 3 + 0x80}[family]
    pieces, _ = pieces_of(tokenizer, [byte] * 100)
    assert len("".join(pieces)) >= 96
    assert max(len(piece) for piece in pieces) <= 4


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(0, 259), max_size=40))
@example(ids=[4 + 0xED, 4 + 0xA0])  # the first two bytes of half a surrogate pair: they wait for a third
def test_any_bytes_come_out_as_the_library_decodes_them(tokenizers, ids):
    """Except that an unfinished last character is left out."""
    pieces, rest = pieces_of(tokenizers["tok"], ids)
    whole = tokenizers["tok"].decode(ids)
    joined = "".join(pieces) + rest
    assert whole in (joined, joined + "\ufffd", joined + 2 * "\ufffd")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=30), family=st.sampled_from(["tok", "byte_level", "llama2"]))
def test_any_text_comes_back(tokenizers, text, family):
    ids = tokenizers[family].encode(text, add_special_tokens=False)
    pieces, rest = pieces_of(tokenizers[family], ids)
    assert "".join(pieces) + rest == tokenizers[family].decode(ids) == text


@pytest.mark.parametrize("family", FAMILIES)
def test_special_and_end_tokens_never_show(tokenizers, family):
    tokenizer = tokenizers[family]
    letter = tokenizer.encode("a", add_special_tokens=False)
    ids = [*sorted(tokenizer.special_texts), *letter, *sorted(tokenizer.eos_token_ids), *letter]
    pieces, rest = pieces_of(tokenizer, ids)
    assert "<" not in "".join(pieces) + rest
    assert "".join(pieces) + rest == tokenizer.decode(letter + letter)


def test_an_end_token_that_is_not_special_does_not_show_either(tmp_path):
    on_disk.byte_level(tmp_path)
    thinks = Tokenizer.load(tmp_path).encode("<think>", add_special_tokens=False)
    assert len(thinks) == 1
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {thinks[0]}}}')
    tokenizer = Tokenizer.load(tmp_path)
    pieces, rest = pieces_of(tokenizer, [*tokenizer.encode("ab", add_special_tokens=False), *thinks])
    assert "".join(pieces) + rest == "ab"


def test_cost_of_a_token_does_not_grow_with_the_answer(tokenizers, monkeypatch):
    """The window decodes a handful of tokens however long the answer is."""
    tokenizer = tokenizers["llama2"]
    longest = 0
    decode = tokenizer.decode

    def watched(ids, *rest):
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids, *rest)

    monkeypatch.setattr(tokenizer, "decode", watched)
    pieces_of(tokenizer, tokenizer.encode("a b c 😀 " * 200))
    assert longest <= 8
