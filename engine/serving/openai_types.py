"""What clients may ask for: the bodies of `/v1/completions` and `/v1/chat/completions`.

Owns the fields, their kinds, and the list of known fields that this server does not support. Ranges of sampling
values belong to `SamplingParams`. Never knows a tokenizer or the engine.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from engine.scheduling.sampling_params import InvalidRequest, SamplingParams

MAX_LOGPROBS = 20

_INT64 = 2**63
Seed = Annotated[int, Field(ge=-_INT64, lt=_INT64)]
# One error is enough: a list of a million wrong values would make a million error texts.
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Texts = Annotated[list[str], Field(fail_fast=True)]
TokenIdLists = Annotated[list[TokenIds], Field(fail_fast=True)]

# Field → the values with which it asks for nothing (an absent field and null never ask for anything).
_NOT_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1, 1.0),
    "logit_bias": ({},),
    "logits_processors": ([],),
    "modalities": (["text"], []),
    "prediction": (),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "web_search_options": (),
}


class StreamOptions(BaseModel):
    """`include_usage` adds a last chunk with the usage; `null` in all chunks before it."""

    include_usage: bool | None = False


class GenerationRequest(BaseModel):
    """The fields that both routes share. Unknown fields are ignored, null means the default."""

    model_config = ConfigDict(strict=True, extra="allow")

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: Seed | None = None
    stop: str | Texts | None = None
    n: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = False

    def num_logprobs(self) -> int | None:
        """How many alternatives to report beside each sampled token; None for no log-probabilities at all."""
        raise NotImplementedError

    def token_limit(self) -> int | None:
        """The most tokens to answer; None for what the context leaves."""
        return self.max_tokens

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def check_supported(self) -> None:
        """Raise InvalidRequest for a field that is known, asks for something, and is not supported here."""
        for name, value in (self.model_extra or {}).items():
            if name in _NOT_SUPPORTED and value is not None and value not in _NOT_SUPPORTED[name]:
                raise InvalidRequest(f"{name} is not supported by this server; leave it out", name)
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only for streams; set stream to true or leave it out", "stream")

    def sampling_params(self) -> SamplingParams:
        """The engine's own form. Raises InvalidRequest for a value out of range."""
        logprobs = self.num_logprobs()
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "seed": self.seed,
            "n": self.n,
            "stop": (self.stop,) if isinstance(self.stop, str) else self.stop and tuple(self.stop),
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "ignore_eos": self.ignore_eos,
            "min_tokens": self.min_tokens,
            "logprobs": logprobs,
        }
        return SamplingParams(
            max_tokens=self.token_limit(),
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
        )


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`: continue a text, or several."""

    prompt: str | Texts | TokenIds | TokenIdLists
    logprobs: int | None = None

    def num_logprobs(self) -> int | None:
        """OpenAI's `logprobs` of completions: a number."""
        _check_logprobs(self.logprobs, "logprobs")
        return self.logprobs

    def token_limit(self) -> int | None:
        """16 where nothing is said, as at OpenAI."""
        return 16 if self.max_tokens is None else self.max_tokens

    def prompts(self) -> list[str] | list[TokenIds]:
        """The prompts, one an element, whichever form they came in. Raises InvalidRequest when there is none."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise InvalidRequest("prompt is an empty list; send at least one prompt", "prompt")
        if isinstance(prompt[0], int):
            return [prompt]
        return prompt


class ContentPart(BaseModel):
    """A piece of a message; only text is supported."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: str
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`: answer the last message of a conversation."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def num_logprobs(self) -> int | None:
        """OpenAI's chat form: `logprobs` says whether, `top_logprobs` how many."""
        _check_logprobs(self.top_logprobs, "top_logprobs")
        if not self.logprobs:
            if self.top_logprobs:
                raise InvalidRequest("top_logprobs needs logprobs to be true", "top_logprobs")
            return None
        return self.top_logprobs or 0

    def token_limit(self) -> int | None:
        """`max_completion_tokens` is the newer name; it wins where both are given."""
        if self.max_completion_tokens is not None and self.max_completion_tokens < 1:
            raise InvalidRequest(
                f"max_completion_tokens must be at least 1, got {self.max_completion_tokens}", "max_completion_tokens"
            )
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def conversation(self) -> list[dict[str, str]]:
        """Role and text of each message. Raises InvalidRequest for what is no text or no role of a conversation."""
        return [_role_and_text(number, message) for number, message in enumerate(self.messages)]


_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def _role_and_text(number: int, message: ChatMessage) -> dict[str, str]:
    where = f"messages[{number}]"
    if message.role in ("tool", "function") or (message.model_extra or {}).get("tool_calls"):
        raise InvalidRequest(f"{where}: tools are not supported by this server", "messages")
    if message.role not in _ROLES:
        raise InvalidRequest(f"{where}.role must be one of system, user, assistant", "messages")
    content = message.content
    if content is None:
        raise InvalidRequest(f"{where}.content is missing; send a text", "messages")
    if not isinstance(content, str):
        for part in content:
            if part.type not in ("text", "input_text"):
                raise InvalidRequest(
                    f"{where}.content: only parts of type 'text' are supported (no images, audio or files)", "messages"
                )
            if part.text is None:
                raise InvalidRequest(f"{where}.content: a part of type 'text' has no text", "messages")
        content = "".join(part.text or "" for part in content)
    return {"role": _ROLES[message.role], "content": content}


def _check_logprobs(value: int | None, name: str) -> None:
    if value is not None and not 0 <= value <= MAX_LOGPROBS:
        raise InvalidRequest(f"{name} must be from 0 to {MAX_LOGPROBS}, got {value}", name)
