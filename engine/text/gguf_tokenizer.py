"""The tokenizer inside a GGUF file, as a Hugging Face tokenizer folder.

Owns the conversion and its cache. Never knows weights. transformers converts; what it leaves out is added here: the
splitting of digits, and all tokens that end an answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from tokenizers import pre_tokenizers

from engine.text.tokenizer_files import TextError

FORMAT = 1
"""Part of the cache key: raise it when the conversion changes."""

DIGIT_SPLITTING = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
"""llama.cpp's names of pre-tokenizers that take digits one by one before GPT-2's rule."""

END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
END_NAMES = frozenset({"<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"})
"""Llama 3's three; its GGUF files name only one of them."""


def is_gguf(path: Path) -> bool:
    """Whether `path` is a GGUF file, by its name or its first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix == ".gguf" or file.read(4) == b"GGUF"


@contextlib.contextmanager
def converted_folder(path: Path, cache_dir: Path | None) -> Iterator[Path]:
    """A folder with `path`'s tokenizer, converted now or before; without `cache_dir` it lives as long as the context.

    A conversion is made beside its final place and renamed into it, so a broken-off one is never taken for whole.

    Raises TextError when the file holds no tokenizer that can be converted.
    """
    if cache_dir is None:
        with tempfile.TemporaryDirectory() as folder:
            _convert(path, Path(folder))
            yield Path(folder)
        return
    final = cache_dir / f"tokenizer-{_cache_key(path)}"
    if not final.is_dir():
        cache_dir.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".tokenizer-", dir=cache_dir))
        try:
            _convert(path, unfinished)
            with contextlib.suppress(OSError):  # another process was faster: its folder is as good
                os.replace(unfinished, final)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    yield final


def _cache_key(path: Path) -> str:
    """Which file it is and which code converts it."""
    stat = path.stat()
    parts = (FORMAT, transformers.__version__, tokenizers.__version__, path.resolve(), stat.st_size, stat.st_mtime_ns)
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def _convert(path: Path, folder: Path) -> None:
    try:
        fast = transformers.PreTrainedTokenizerFast.from_pretrained(
            str(path.parent), gguf_file=path.name, local_files_only=True
        )
        metadata = _metadata(path)
    except Exception as error:  # damaged files fail in many ways
        raise TextError(f"no tokenizer can be converted out of {path.name}: {error}") from error
    if metadata.get("pre") in DIGIT_SPLITTING:
        fast.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    fast.save_pretrained(str(folder))
    ends = {int(metadata[key]) for key in END_KEYS if key in metadata}
    ends |= {i for name, i in fast.get_added_vocab().items() if name in END_NAMES}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": sorted(ends)}), encoding="utf-8")


def _metadata(path: Path) -> dict[str, Any]:
    """The file's single values under `tokenizer.ggml.`, without the prefix."""
    from gguf import GGUFReader

    prefix = "tokenizer.ggml."
    fields = GGUFReader(path).fields
    return {
        name.removeprefix(prefix): field.contents()
        for name, field in fields.items()
        if name.startswith(prefix) and len(field.data) == 1
    }
