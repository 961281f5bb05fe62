"""Tokenizers inside GGUF files: converted once, whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import gguf
import pytest
from transformers import PreTrainedTokenizerFast

from engine.text import gguf_tokenizer
from engine.text.assembler import TextAssembler
from engine.text.tokenizer import TextError, Tokenizer
from tests.unit.text import tokenizers_on_disk as on_disk

TEMPLATE = "{% for m in messages %}<|bos|>{{ m.content }}<|eot|>{% endfor %}"
NORMAL, CONTROL = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL


def write_gguf(path: Path, pre: str = "smollm", **extra_ids: int) -> Path:
    """The byte-level tokenizer of `tokenizers_on_disk` as a GGUF without tensors; names `<|end|>` no end token."""
    folder = on_disk.byte_level(path.parent / "source")
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token.startswith("<|") else NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for key, token_id in extra_ids.items():
        writer.add_uint32(f"tokenizer.ggml.{key}", token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_what_comes_out_of_a_gguf(tmp_path):
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "model.gguf", eot_token_id=2))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (0, {1, 2})
    assert tokenizer.is_byte_level
    assert tokenizer.has_chat_template
    ids = tokenizer.encode(on_disk.TEXT)
    assert ids[0] != 0
    assert tokenizer.decode(ids) == on_disk.TEXT
    chat = tokenizer.chat_tokens([{"role": "user", "content": "héllo 😀"}])
    assert (chat[0], chat[-1]) == (0, 1)
    assembler = TextAssembler(tokenizer)
    assert "".join(assembler.push(i).text for i in chat) == "héllo 😀"


def test_sentencepiece_in_a_gguf(tmp_path):
    """Scores instead of merges, byte fallback, a bos of its own: what Llama 2 and TinyLlama files hold."""
    words = ["▁", "a", "b", "▁a", "▁b", "ab", "▁ab"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    kinds = [gguf.TokenType.UNKNOWN, CONTROL, CONTROL, *[gguf.TokenType.BYTE] * 256, *[NORMAL] * len(words)]
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(n) for n in range(len(words))])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = Tokenizer.load(tmp_path / "model.gguf")
    text = "ab a 😀 b  b"
    ids = tokenizer.encode(text)
    assert (ids[0], tokenizer.eos_token_ids, tokenizer.has_chat_template) == (1, {2}, False)
    assembler = TextAssembler(tokenizer)
    assert "".join(assembler.push(i).text for i in ids) + assembler.finish() == text == tokenizer.decode(ids)


def test_one_end_token_by_default(tmp_path):
    assert Tokenizer.load(write_gguf(tmp_path / "model.gguf")).eos_token_ids == {1}


def test_digits_are_split_one_by_one_where_the_vocabulary_was_made_so(tmp_path):
    """Two spaces before a digit stay together, which GPT-2's rule alone would part."""
    smollm = Tokenizer.load(write_gguf(tmp_path / "smollm.gguf", pre="smollm"))
    gpt2 = Tokenizer.load(write_gguf(tmp_path / "gpt2.gguf", pre="gpt-2"))
    texts = [[t.token_bytes(i) for i in t.encode("a  1", add_special_tokens=False)] for t in (smollm, gpt2)]
    assert texts == [[b"a", b"  ", b"1"], [b"a", b" ", b" ", b"1"]]


def test_a_conversion_is_made_once(tmp_path, monkeypatch):
    path, cache = write_gguf(tmp_path / "model.gguf"), tmp_path / "cache"
    first = Tokenizer.load(path, cache_dir=cache)
    (made,) = cache.iterdir()
    monkeypatch.setattr(gguf_tokenizer, "_convert", lambda *_: pytest.fail("converted again"))
    second = Tokenizer.load(path, cache_dir=cache)
    assert list(cache.iterdir()) == [made]
    assert second.encode(on_disk.TEXT) == first.encode(on_disk.TEXT)
    assert (second.eos_token_ids, second.vocab_size) == (first.eos_token_ids, first.vocab_size)
    assert second.chat_tokens([{"role": "user", "content": "x"}]) == first.chat_tokens(
        [{"role": "user", "content": "x"}]
    )


def test_a_changed_file_is_converted_again(tmp_path):
    cache = tmp_path / "cache"
    Tokenizer.load(write_gguf(tmp_path / "model.gguf"), cache_dir=cache)
    path = write_gguf(tmp_path / "model.gguf", eot_token_id=2)
    os.utime(path, ns=(1, 1))
    assert Tokenizer.load(path, cache_dir=cache).eos_token_ids == {1, 2}
    assert len(list(cache.iterdir())) == 2


def test_a_conversion_broken_off_is_never_taken_for_whole(tmp_path, monkeypatch):
    path, cache = write_gguf(tmp_path / "model.gguf"), tmp_path / "cache"
    save = PreTrainedTokenizerFast.save_pretrained

    def broken_off(self, folder, *args, **kwargs):
        save(self, folder, *args, **kwargs)
        raise KeyboardInterrupt

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", broken_off)
    with pytest.raises(KeyboardInterrupt):
        Tokenizer.load(path, cache_dir=cache)
    monkeypatch.undo()
    assert list(cache.iterdir()) == []
    (cache / ".tokenizer-killed").mkdir()  # what a killed process leaves behind
    assert Tokenizer.load(path, cache_dir=cache).eos_token_ids == {1}


def test_two_processes_converting_at_once_agree(tmp_path, monkeypatch):
    path, cache = write_gguf(tmp_path / "model.gguf"), tmp_path / "cache"
    convert = gguf_tokenizer._convert

    def slower_than_the_other(source, folder):
        convert(source, folder)
        monkeypatch.setattr(gguf_tokenizer, "_convert", convert)
        Tokenizer.load(path, cache_dir=cache)

    monkeypatch.setattr(gguf_tokenizer, "_convert", slower_than_the_other)
    assert Tokenizer.load(path, cache_dir=cache).eos_token_ids == {1}
    assert len(list(cache.iterdir())) == 1


def test_damaged_files_are_refused_in_words(tmp_path):
    whole = write_gguf(tmp_path / "model.gguf").read_bytes()
    for number, content in enumerate([b"", b"GGUF", whole[:200], whole[: len(whole) // 2], b"not a gguf at all"]):
        path = tmp_path / f"damaged{number}.gguf"
        path.write_bytes(content)
        with pytest.raises(TextError, match=path.name):
            Tokenizer.load(path, cache_dir=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_gguf_is_known_by_its_first_bytes_too(tmp_path):
    path = write_gguf(tmp_path / "model.gguf")
    renamed = path.rename(tmp_path / "blob")
    assert Tokenizer.load(renamed).eos_token_ids == {1}
    (tmp_path / "other").write_bytes(b"abcd")
    with pytest.raises(TextError, match="neither"):
        Tokenizer.load(tmp_path / "other")
