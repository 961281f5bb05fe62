"""What became of each request of a load test, and the figures that follow.

Owns the definitions: TTFT from sending to the first piece of the answer, ITL each gap between pieces, TPOT
(last - first) / (tokens - 1), goodput the finished requests a second that met both targets. Never sends anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Outcome:
    """One request. Times are seconds since the load test began; `error` is a kind, never a text of the server's."""

    due_s: float
    sent_s: float = 0.0
    piece_times_s: list[float] = field(default_factory=list)
    ended_s: float | None = None
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None

    @property
    def is_whole(self) -> bool:
        """Answered to the end."""
        return self.error is None and self.ended_s is not None

    @property
    def ttft_s(self) -> float | None:
        """Sending to first piece."""
        return self.piece_times_s[0] - self.sent_s if self.piece_times_s else None

    @property
    def gaps_s(self) -> list[float]:
        """Between one piece and the next."""
        return [b - a for a, b in zip(self.piece_times_s, self.piece_times_s[1:], strict=False)]

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None below two tokens."""
        if self.num_output_tokens < 2 or not self.piece_times_s:
            return None
        return (self.piece_times_s[-1] - self.piece_times_s[0]) / (self.num_output_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """Sending to the end."""
        return self.ended_s - self.sent_s if self.ended_s is not None else None


@dataclass(frozen=True, slots=True)
class Targets:
    """What a request must keep to count as good: its TTFT, and its mean gap between tokens."""

    ttft_s: float = 1.0
    itl_s: float = 0.1

    def are_met(self, outcome: Outcome) -> bool:
        """Whether `outcome` is whole and was fast enough."""
        ttft, tpot = outcome.ttft_s, outcome.tpot_s
        return outcome.is_whole and ttft is not None and ttft <= self.ttft_s and (tpot is None or tpot <= self.itl_s)


def summary(outcomes: Sequence[Outcome], targets: Targets) -> dict[str, Any]:
    """All figures, as JSON. Percentiles are of whole requests; rates are over the time from first sent to last end."""
    whole = [outcome for outcome in outcomes if outcome.is_whole]
    began = min((outcome.sent_s for outcome in outcomes), default=0.0)
    ended = max((outcome.ended_s or outcome.sent_s for outcome in outcomes), default=0.0)
    duration_s = max(ended - began, 1e-9)
    return {
        "num_requests": len(outcomes),
        "num_whole": len(whole),
        "duration_s": duration_s,
        "request_rate": len(whole) / duration_s,
        "offered_rate": _offered_rate(outcomes),
        "output_tok_s": sum(outcome.num_output_tokens for outcome in whole) / duration_s,
        "prompt_tok_s": sum(outcome.num_prompt_tokens for outcome in whole) / duration_s,
        "num_prompt_tokens": sum(outcome.num_prompt_tokens for outcome in whole),
        "num_output_tokens": sum(outcome.num_output_tokens for outcome in whole),
        "ttft_s": percentiles([o.ttft_s for o in whole if o.ttft_s is not None]),
        "itl_s": percentiles([gap for o in whole for gap in o.gaps_s]),
        "tpot_s": percentiles([o.tpot_s for o in whole if o.tpot_s is not None]),
        "e2e_s": percentiles([o.e2e_s for o in whole if o.e2e_s is not None]),
        "goodput": sum(targets.are_met(outcome) for outcome in outcomes) / duration_s,
        "targets": {"ttft_s": targets.ttft_s, "itl_s": targets.itl_s},
        "max_send_delay_s": max((outcome.sent_s - outcome.due_s for outcome in outcomes), default=0.0),
        "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error is not None)),
        "finish_reasons": dict(Counter(outcome.finish_reason for outcome in whole if outcome.finish_reason)),
    }


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p95, p99: the smallest value that at least that share of all is not above; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return {"p50": None, "p95": None, "p99": None}
    return {f"p{p}": ordered[-(-len(ordered) * p // 100) - 1] for p in (50, 95, 99)}


def _offered_rate(outcomes: Sequence[Outcome]) -> float | None:
    span_s = max((o.due_s for o in outcomes), default=0.0) - min((o.due_s for o in outcomes), default=0.0)
    return (len(outcomes) - 1) / span_s if span_s > 0 else None
