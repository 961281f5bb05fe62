"""What one request asks of the sampler and where its answer must end.

Owns the ranges of these values and the words in which a wrong one is refused. Never knows a model's
vocabulary, a context length or other requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GREEDY_TEMPERATURE = 1e-5
"""Below this temperature sampling is greedy: dividing logits by less than this overflows float32."""

MAX_STOP_STRINGS = 16


class InvalidRequest(ValueError):
    """A request that can never be served as asked. `param` names the field at fault, if it is one field."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Settings of one request, in vLLM's names.

    `max_tokens` None means "as many as the context leaves". `top_k` of 0 or -1, or past the vocabulary, means off.
    `repetition_penalty` counts prompt and answer (transformers' definition); `presence_penalty` and
    `frequency_penalty` count the answer only (OpenAI's). `logprobs` is how many alternatives to report beside the
    sampled token, of the raw distribution: None is no log-probabilities, 0 the sampled token's alone.

    Raises InvalidRequest for a value out of range.
    """

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and low <= value <= high):
                raise InvalidRequest(f"{name} must be {_range_in_words(low, high)}, got {value!r}", name)
        if self.top_p == 0.0:
            object.__setattr__(self, "top_p", 1e-9)  # keeps the one most likely token, like any tiny value
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidRequest(f"max_tokens must be at least 1, got {self.max_tokens}", "max_tokens")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) is more than max_tokens ({self.max_tokens})", "min_tokens"
            )
        if self.repetition_penalty <= 0:
            raise InvalidRequest(
                f"repetition_penalty must be more than 0 (1 is off), got {self.repetition_penalty}",
                "repetition_penalty",
            )
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}", "stop")
        if any(not text for text in self.stop):
            raise InvalidRequest("stop strings must not be empty; leave stop out to have none", "stop")

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, math.inf),
    ("top_p", 0.0, 1.0),
    ("top_k", -1, math.inf),
    ("min_p", 0.0, 1.0),
    ("n", 1, 128),
    ("min_tokens", 0, math.inf),
    ("repetition_penalty", 0.0, math.inf),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


def _range_in_words(low: float, high: float) -> str:
    return f"a number of at least {low:g}" if math.isinf(high) else f"a number from {low:g} to {high:g}"
