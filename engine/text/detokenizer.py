"""Text from tokens that arrive one by one.

Owns the unfinished end of an answer: bytes that are not yet a character. Never knows stop strings or streams. The
pieces of an answer, joined, are its full text; there is no other way from tokens to an answer's text.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from engine.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
MAX_UNFINISHED_TOKENS = 3
"""A UTF-8 character has at most four bytes, so at most three tokens can wait for its last one."""


class IncrementalDetokenizer(Protocol):
    """`push` gives the text that a token adds, "" if its bytes do not end a character yet or it never shows.

    `flush` gives what is left at the end: bytes that never became a character are dropped, so that an answer cut
    inside an emoji does not end in U+FFFD.
    """

    def push(self, token_id: int) -> str:
        """The text that `token_id` makes certain."""

    def flush(self) -> str:
        """What is left once no token follows."""


def make_detokenizer(tokenizer: Tokenizer) -> IncrementalDetokenizer:
    """The exact, fast way for byte-level vocabularies (Llama 3, Qwen, SmolLM2), else the general one."""
    return ByteDetokenizer(tokenizer) if tokenizer.is_byte_level else WindowDetokenizer(tokenizer)


class ByteDetokenizer:
    """For byte-level BPE: every token is some bytes, and the standard library decodes UTF-8 incrementally."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The characters that end in `token_id`'s bytes."""
        if token_id in self._tokenizer.hidden_token_ids:
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """Nothing: what waits is part of a character."""
        return ""


class WindowDetokenizer:
    """For every other vocabulary: decode a short window twice, without and with the new token, and take the difference.

    A token's text depends on its left neighbours (SentencePiece drops the first space of whatever it decodes), so the
    window begins one emitted piece early. The idea is Hugging Face text-generation-inference's and vLLM's
    (prefix offset and read offset).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._emitted: list[int] = []
        self._waiting: list[int] = []

    def push(self, token_id: int) -> str:
        """The text between what was emitted and what is certain now."""
        if token_id in self._tokenizer.hidden_token_ids:
            return ""
        self._waiting.append(token_id)
        text = self._new_text()
        if self._may_be_unfinished(text):
            return ""
        self._emitted, self._waiting = self._waiting, []
        return text

    def flush(self) -> str:
        """The waiting text without its unfinished character."""
        text = self._new_text().rstrip(REPLACEMENT) if self._waiting else ""
        self._emitted, self._waiting = self._waiting, []
        return text

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._emitted)
        both = self._tokenizer.decode(self._emitted + self._waiting)
        if both.startswith(before):
            return both[len(before) :]
        return self._tokenizer.decode(self._waiting)  # bytes that spoil the character before them

    def _may_be_unfinished(self, text: str) -> bool:
        if not text.endswith(REPLACEMENT) or len(self._waiting) > MAX_UNFINISHED_TOKENS:
            return False
        return REPLACEMENT.encode() not in self._tokenizer.token_bytes(self._waiting[-1])
