"""Prompts that are not made into tokens here: the model that will read them is elsewhere, or nowhere.

Owns a stand-in for the tokenizer, so that whoever asks for tokens (page, routes) needs no second way. Never knows
where the text goes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

CHARS_PER_TOKEN = 4
STAND_IN_IDS = range(300, 1000)
"""Ids that are words or parts of words in the usual vocabularies: what a load generator may send as tokens."""


class RemotePrompt(tuple[int, ...]):
    """A prompt as it was typed: `text`, or `messages` of a conversation with the template's own variables.

    As a sequence it holds as many stand-in ids as it is likely to have tokens.
    """

    text: str | None
    messages: list[dict[str, Any]] | None
    template_kwargs: dict[str, Any]

    @classmethod
    def of_text(cls, text: str) -> RemotePrompt:
        """A text to be continued."""
        prompt = cls._of_length(len(text))
        prompt.text, prompt.messages, prompt.template_kwargs = text, None, {}
        return prompt

    @classmethod
    def of_messages(cls, messages: Sequence[Mapping[str, Any]], template_kwargs: dict[str, Any]) -> RemotePrompt:
        """A conversation to be answered."""
        prompt = cls._of_length(sum(len(str(message.get("content", ""))) for message in messages))
        prompt.text, prompt.template_kwargs = None, template_kwargs
        prompt.messages = [dict(message) for message in messages]
        return prompt

    @classmethod
    def _of_length(cls, num_chars: int) -> RemotePrompt:
        num_tokens = -(-num_chars // CHARS_PER_TOKEN)
        return cls(STAND_IN_IDS[i % len(STAND_IN_IDS)] for i in range(num_tokens))


class RemoteTexts:
    """`engine.text.tokenizer.Tokenizer`'s doors, without a vocabulary."""

    has_chat_template = True
    vocab_size = STAND_IN_IDS.stop

    def encode(self, text: str, add_special_tokens: bool = True) -> RemotePrompt:
        """The text itself; whoever gets it makes tokens of it."""
        return RemotePrompt.of_text(text)

    def chat_tokens(self, messages: Sequence[Mapping[str, Any]], **chat_template_kwargs: Any) -> RemotePrompt:
        """The conversation itself."""
        return RemotePrompt.of_messages(messages, chat_template_kwargs)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Nothing: ids mean nothing here."""
        return ""

    def token_bytes(self, token_id: int) -> bytes:
        """Nothing."""
        return b""
