"""A tokenizer's files: the folder layout of Hugging Face checkpoints.

Owns which file is read for what. Never knows GGUF, templates' content or models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

NAMED_SPECIALS = ("bos_token", "eos_token", "unk_token", "pad_token")
"""Given in tokenizer_config.json as a string or as a dict, which the library takes only with its own type mark."""


class TextError(ValueError):
    """A tokenizer that cannot be used, or text or messages that it cannot take, in words for the person who asked."""


def load_fast_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The folder's tokenizer, never running code from it and never asking a network.

    `tokenizer.json` is taken as it is, whatever class the config names: a class of that name would rebuild some of it
    from the vocabulary and lose, say, how digits are split.

    Raises TextError when there is none or it cannot be read.
    """
    if not folder.is_dir():
        raise TextError(f"{folder} is neither a folder with a tokenizer nor a .gguf file")
    config = _json_object(folder / "tokenizer_config.json")
    names = {key: config[key].get("content") for key in NAMED_SPECIALS if isinstance(config.get(key), dict)}
    try:
        fast = _library_class(folder).from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **names
        )
    except Exception as error:  # the library raises almost anything for a damaged file
        raise TextError(f"no tokenizer can be read from {folder}: {error}") from error
    if not isinstance(fast, PreTrainedTokenizerFast):
        raise TextError(f"{folder} holds only a slow tokenizer; add its tokenizer.json")
    return fast


def _library_class(folder: Path) -> Any:
    if (folder / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer  # imports torch, which the other way does without

    return AutoTokenizer


def eos_ids_in(folder: Path) -> frozenset[int]:
    """The end-of-sequence ids of generation_config.json, else of config.json, an id or a list; else none.

    Llama 3 lists three, of which its tokenizer names one: with that alone answers would run on past `<|eot_id|>`.
    """
    for name in ("generation_config.json", "config.json"):
        ids = _json_object(folder / name).get("eos_token_id")
        if ids is not None:
            return frozenset(ids) if isinstance(ids, list) else frozenset([ids])
    return frozenset()


def _json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TextError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise TextError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content
