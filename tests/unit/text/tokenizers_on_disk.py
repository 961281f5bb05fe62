"""Small tokenizers of the families in use, written as Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXT = (
    "a b c. Hello , world ! it 's do n't  two  spaces   three\n\n\tlines \n "
    "héllo wörld 你好世界 😀👩‍👩‍👧 ½ 12345 e\u0301 " * 3 + "the quick brown fox jumps over the lazy dog. "
)


def byte_level(folder: Path, **config: object) -> Path:
    """Byte-level BPE with merges, in the manner of Llama 3: `<|bos|>` is added by the post-processor."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|bos|>", "<|eot|>", "<|end|>"]
    tokenizer.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        ),
    )
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 0)])
    return _save(tokenizer, folder, bos_token="<|bos|>", eos_token="<|eot|>", **config)


def llama2_style(folder: Path) -> Path:
    """SentencePiece as Llama 2's tokenizer.json spells it: prefix space, byte fallback, first space stripped."""
    pieces = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    words = ["▁", "a", "b", "c", "▁a", "▁b", "▁c", "h", "l", "o", "ll", "▁h", "e", "é", "\ufffd", "▁▁"]
    pieces |= {word: 259 + n for n, word in enumerate(words)}
    merges = [("▁", "a"), ("▁", "b"), ("▁", "c"), ("l", "l"), ("▁", "h"), ("▁", "▁")]
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    return _save(tokenizer, folder, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def metaspace(folder: Path) -> Path:
    """Unigram with the Metaspace decoder."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        [TEXT], trainers.UnigramTrainer(vocab_size=120, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>")
    )
    return _save(tokenizer, folder, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def edit_config(folder: Path, **changes: object) -> Path:
    """Changes tokenizer_config.json in place; None removes a key."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def _save(tokenizer: Tokenizer, folder: Path, chat_template: str | None = None, **settings: object) -> Path:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **settings)
    if chat_template is not None:
        fast.chat_template = chat_template
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(str(folder))
    return folder
