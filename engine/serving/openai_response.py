"""What clients get back: OpenAI's response objects, whole and in pieces.

Owns both forms, for completions and for chat, and the arithmetic of `usage`. Never knows the engine's inside; it sees
chunks of answers as `engine.serving.stream` hands them out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from engine.scheduling.plan import SampledToken


class TokenTexts(Protocol):
    """What log-probabilities need of the tokenizer."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for."""


@dataclass(slots=True)
class Piece:
    """A part of one choice: a chunk of its stream, or all of it."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[SampledToken] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one HTTP request: a prompt counts once, however many answers it gets."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's `usage`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class CompletionForm:
    """Responses of `/v1/completions`. One instance serves one HTTP request, since text offsets run on in a stream."""

    object_whole = object_chunk = "text_completion"
    id_prefix = "cmpl"

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._offsets: dict[int, int] = {}

    def opening(self, index: int) -> dict[str, Any] | None:
        """A choice's first chunk before any text; completions have none."""
        return None

    def whole(self, index: int, piece: Piece) -> dict[str, Any]:
        """One choice of a response that is not streamed."""
        return {
            "index": index,
            "text": piece.text,
            "logprobs": self._logprobs(index, piece.logprobs) if piece.logprobs else None,
            "finish_reason": piece.finish_reason,
        }

    delta = whole

    def _logprobs(self, index: int, sampled: Sequence[SampledToken]) -> dict[str, Any]:
        tokens = [self._text(token.token_id) for token in sampled]
        offsets = []
        for text in tokens:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [token.logprob for token in sampled],
            "top_logprobs": [self._top(token) for token in sampled],
            "text_offset": offsets,
        }

    def _top(self, token: SampledToken) -> dict[str, float | None]:
        """Best first; the sampled token is always among them. Tokens with equal text share a key, the best one's."""
        top: dict[str, float | None] = {}
        for token_id, logprob in (*token.top_logprobs, (token.token_id, token.logprob)):
            top.setdefault(self._text(token_id), logprob)
        return top

    def _text(self, token_id: int) -> str:
        return self._texts.decode([token_id], skip_special_tokens=False)


class ChatForm:
    """Responses of `/v1/chat/completions`."""

    object_whole = "chat.completion"
    object_chunk = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts

    def opening(self, index: int) -> dict[str, Any] | None:
        """The chunk that names the speaker."""
        return {
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }

    def whole(self, index: int, piece: Piece) -> dict[str, Any]:
        """One choice of a response that is not streamed."""
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return self._choice(index, "message", message, piece)

    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        """What is new in one choice."""
        return self._choice(index, "delta", {"content": piece.text} if piece.text else {}, piece)

    def _choice(self, index: int, key: str, value: dict[str, Any], piece: Piece) -> dict[str, Any]:
        logprobs = {"content": [self._logprob(token) for token in piece.logprobs]} if piece.logprobs else None
        return {"index": index, key: value, "logprobs": logprobs, "finish_reason": piece.finish_reason}

    def _logprob(self, token: SampledToken) -> dict[str, Any]:
        top = [self._entry(token_id, logprob) for token_id, logprob in token.top_logprobs]
        return self._entry(token.token_id, token.logprob) | {"top_logprobs": top}

    def _entry(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": self._texts.decode([token_id], skip_special_tokens=False),
            "logprob": logprob,
            "bytes": list(self._texts.token_bytes(token_id)),
        }


Form = CompletionForm | ChatForm


class Envelope:
    """What surrounds the choices: the response's id, which begins with the engine's own id, time and model."""

    def __init__(self, form: Form, model: str, first_request_id: int) -> None:
        self._form = form
        self._head = {
            "id": f"{form.id_prefix}-{first_request_id}-{uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, choices: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        """A response that is not streamed."""
        return self._head | {"object": self._form.object_whole, "choices": choices, "usage": usage.to_dict()}

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """One event of a stream."""
        return self._head | {"object": self._form.object_chunk, "choices": choices}
