"""What one step will do, and what came of it: the two values that pass between scheduler and runner.

A plan is complete: a runner needs nothing else to run it. Holds no tensor and imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.scheduling.request import Request


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy-on-write: copy the first `num_tokens` slots of block `src` to block `dst` and clear the rest of `dst`."""

    src: int
    dst: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's part of a step: compute `token_ids`, whose first one stands at position `start`.

    `block_ids` is the block table; it covers at least `start + len(token_ids)` tokens (contiguous layouts: more).
    `num_padding` further rows are computed and thrown away (a static batch's padding). `samples` is true when the
    last token is the newest one, so that its logits give the next token. `token_ids` may be empty (only padding).
    """

    request: Request
    token_ids: tuple[int, ...]
    start: int
    block_ids: Sequence[int]
    samples: bool
    is_decode: bool
    num_padding: int = 0

    @property
    def request_id(self) -> int:
        """The engine's own id of the request."""
        return self.request.request_id

    @property
    def context_length(self) -> int:
        """Tokens with keys and values once this step has run."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step, decided. A runner carries out `copies` first, reading every source before it writes any destination
    (a source may have been handed out again in this same step). Then it clears `new_block_ids`, just taken from the
    pool, because masked attention still multiplies what it reads (0 x NaN is NaN); destinations of copies are not
    among them. `num_inactive_rows` are the rows that a static batch computes for slots whose request has ended."""

    step: int
    scheduled: tuple[ScheduledRequest, ...] = ()
    new_block_ids: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    num_inactive_rows: int = 0

    @property
    def num_rows(self) -> int:
        """Rows of the packed batch: tokens, padding and inactive slots."""
        return sum(len(s.token_ids) + s.num_padding for s in self.scheduled) + self.num_inactive_rows


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The next token of one request. `top_logprobs` are (token id, log-probability), raw, best first."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a runner returns: a token for every scheduled request that samples, or an error for it alone.

    `errors` maps a request id to words (its logits were NaN, say); the others' tokens are right nevertheless.
    """

    sampled: Mapping[int, SampledToken]
    errors: Mapping[int, str] = field(default_factory=dict)
    batch_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0
