"""Text to token ids and back, and a conversation to the prompt its model was trained on.

Owns the tokenizer and the chat template. Never knows requests, sampling or streams; `engine.text.detokenizer` makes
text of tokens that arrive one by one. Safe to call from several threads.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import decoders
from transformers import PreTrainedTokenizerFast

from engine.text.gguf_tokenizer import converted_folder, is_gguf
from engine.text.token_bytes import bytes_of_token
from engine.text.tokenizer_files import TextError, eos_ids_in, load_fast_tokenizer

ALLOWED_TEMPLATE_ARGUMENTS = frozenset({"add_generation_prompt", "continue_final_message"})
RESERVED_TEMPLATE_ARGUMENTS = (
    frozenset(inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters) - ALLOWED_TEMPLATE_ARGUMENTS
) | {"messages", "strftime_now", "tokenizer", "self"}
"""Names that `chat_template_kwargs` may not set: they steer the library, and one of them would replace the template."""

DATE_CALL = re.compile(r"""\bstrftime_now\(\s*(?P<quote>["'])(?P<format>[^"'\\]*)(?P=quote)\s*\)""")


class Tokenizer:
    """A model's tokenizer: `encode`, `decode`, `chat_tokens`.

    `eos_token_ids` are all ids that end an answer: the model's and, as in vLLM, the tokenizer's own. `vocab_size` is
    the highest token id plus one, which in sparse vocabularies is not the number of tokens. `special_texts` are the
    special tokens' names by id; `hidden_token_ids`, these and the end-of-sequence ids, never show in text.
    """

    def __init__(
        self,
        fast: PreTrainedTokenizerFast,
        eos_token_ids: Iterable[int] = (),
        today: datetime | None = None,
    ) -> None:
        self._fast = fast
        self._backend = fast.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        own_eos = () if fast.eos_token_id is None else (fast.eos_token_id,)
        self.eos_token_ids: frozenset[int] = frozenset(eos_token_ids).union(own_eos)
        self.bos_token_id: int | None = fast.bos_token_id
        self.vocab_size: int = 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)
        added = self._backend.get_added_tokens_decoder()
        self.special_texts: dict[int, str] = {i: t.content for i, t in added.items() if t.special}
        self.hidden_token_ids: frozenset[int] = frozenset(self.special_texts) | self.eos_token_ids
        self.is_byte_level: bool = isinstance(self._backend.decoder, decoders.ByteLevel)
        self._token_bytes: dict[int, bytes] = {}  # filled as tokens are met; only ever the same value for a key
        fast.chat_template = _dated(fast.chat_template, today or datetime.now())

    @classmethod
    def load(cls, path: str | Path, cache_dir: str | Path | None = None, today: datetime | None = None) -> Tokenizer:
        """The tokenizer of a Hugging Face folder or a `.gguf` file.

        What is converted out of a GGUF is kept in `cache_dir`, so that the next start takes 0.2 s instead of 3.
        `today` is the day that date-aware chat templates are told, for as long as this tokenizer lives: a prompt that
        changed at midnight would lose its cached prefix. Default: the day of loading.

        Raises TextError when there is no readable tokenizer.
        """
        folder = Path(path)
        if is_gguf(folder):
            with converted_folder(folder, None if cache_dir is None else Path(cache_dir)) as converted:
                return cls(load_fast_tokenizer(converted), eos_ids_in(converted), today)
        return cls(load_fast_tokenizer(folder), eos_ids_in(folder), today)

    @property
    def has_chat_template(self) -> bool:
        """Whether `chat_tokens` can work: base models have no template."""
        return bool(self._fast.chat_template)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; `add_special_tokens` adds what the tokenizer's own settings add (often a bos).

        The names of special tokens in `text` become those tokens, as in transformers and vLLM, so that a prompt that
        was templated elsewhere works. If `text` already begins with the bos that the tokenizer adds, it is not doubled.

        Raises TextError for text that is not valid Unicode.
        """
        try:
            # Unlike `encode`, the batch call lets go of the interpreter lock: a long prompt must not stop the engine.
            ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except (TypeError, UnicodeEncodeError):
            raise TextError(
                "the text holds half of a surrogate pair (a lone \\ud800 to \\udfff), which is no character; remove it"
            ) from None
        if add_special_tokens and len(ids) > 1 and ids[0] == ids[1] == self.bos_token_id:
            return ids[1:]
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `token_ids` at once; spaces are left as they are, never "cleaned up"."""
        if skip_special_tokens:
            token_ids = [i for i in token_ids if i not in self.hidden_token_ids]
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=False)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes this token stands for inside a text; a multi-byte character may be spread over several tokens."""
        known = self._token_bytes.get(token_id)
        if known is None:
            known = bytes_of_token(self._backend.id_to_token(token_id) or "", self.is_byte_level)
            self._token_bytes[token_id] = known
        return known

    def chat_tokens(self, messages: Sequence[Mapping[str, Any]], /, **chat_template_kwargs: Any) -> list[int]:
        """The prompt's token ids for a conversation (`role` and `content` each), ready for the answer to begin.

        Special tokens come from the template alone, so there is never a second bos. As in transformers and vLLM, the
        names of special tokens inside a message's content become those tokens too. `chat_template_kwargs` are the
        template's own variables (`date_string`, `enable_thinking`, …).

        Raises TextError if the model has no template or the template refuses the messages.
        """
        if not self.has_chat_template:
            raise TextError(
                "this model has no chat template (a base model?); send plain text to /v1/completions instead"
            )
        _check_messages(messages)
        reserved = sorted(RESERVED_TEMPLATE_ARGUMENTS & chat_template_kwargs.keys())
        if reserved:
            raise TextError(f"chat_template_kwargs sets the template's own variables, not {', '.join(reserved)}")
        settings = {"add_generation_prompt": not chat_template_kwargs.get("continue_final_message")}
        try:
            prompt = self._fast.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                **(settings | chat_template_kwargs),
            )
        except Exception as error:  # a template is a program: it can fail in any way
            words = str(error).partition("Final message to continue")[0]  # what follows is what people wrote
            raise TextError(f"the model's chat template does not take these messages: {words}") from None
        return self.encode(prompt, add_special_tokens=False)


def _dated(template: Any, today: datetime) -> Any:
    """`template`, or each of several by name, with its calls of `strftime_now` replaced by what they give `today`."""
    if isinstance(template, dict):
        return {name: _dated(source, today) for name, source in template.items()}
    if not template:
        return template
    return DATE_CALL.sub(lambda call: json.dumps(today.strftime(call["format"])), template)


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> None:
    if not messages:
        raise TextError("messages is empty; send at least one message")
    for number, message in enumerate(messages):
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                kind = type(message.get(key)).__name__
                raise TextError(f"messages[{number}].{key} must be a string, got {kind}")
