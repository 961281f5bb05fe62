"""One request: what was asked, what has been computed, what came out.

Owns the request's durable state. Never knows which blocks it has (`engine.kv`), who else is running, or text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from engine.scheduling.sampling_params import SamplingParams


class State(StrEnum):
    """The durable states. `active_prefill` and `active_decode` are no states: they are one step's choice."""

    PENDING_PREFILL = "pending_prefill"
    PENDING_DECODE = "pending_decode"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended, in OpenAI's words plus our two."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Request:
    """A request as the scheduler sees it; only the engine thread touches one after it was submitted.

    `max_tokens` is the resolved limit: what was asked, cut to what the context and the pool can hold.
    `completes_stop` tells, given the newest token, whether the text now contains a stop string; it is a plain
    callable, so that scheduling knows nothing of text. Times are seconds of the engine's monotonic clock.
    """

    request_id: int
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    seed: int
    eos_token_ids: frozenset[int] = frozenset()
    completes_stop: Callable[[int], bool] | None = None
    sibling_of: int | None = None
    """The request whose prompt this one shares (`n` > 1); it waits for that prompt to be computed and forks it."""

    arrival_s: float = 0.0
    state: State = State.PENDING_PREFILL
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    """Tokens of prompt + output whose keys and values are stored now. Preemption sets it back to 0."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache at the first admission."""
    num_preemptions: int = 0
    last_scheduled_step: int = -1
    finish_reason: FinishReason | None = None
    error: str | None = None

    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finished_s: float | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt, in tokens."""
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and answer so far, in tokens."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose keys and values are still to be computed; 1 for a request that is ready to decode."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def max_total_tokens(self) -> int:
        """The most tokens this request can ever have keys and values for."""
        return self.num_prompt_tokens + self.max_tokens

    def tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Token ids at positions `start` to `stop` of prompt + answer."""
        p = len(self.prompt_token_ids)
        if stop <= p:
            return self.prompt_token_ids[start:stop]
        answer = tuple(self.output_token_ids[max(0, start - p) : stop - p])
        return self.prompt_token_ids[start:p] + answer if start < p else answer
