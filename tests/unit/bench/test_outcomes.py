"""The figures of a load test, on outcomes made by hand."""

from __future__ import annotations

import pytest

from engine.bench.outcomes import Outcome, Targets, percentiles, summary


def outcome(sent: float, pieces: list[float], ended: float, tokens: int, **more: object) -> Outcome:
    return Outcome(sent, sent, pieces, ended, num_prompt_tokens=10, num_output_tokens=tokens, **more)  # type: ignore[arg-type]


FAST = outcome(0.0, [0.5, 0.6, 0.7], 0.75, 3, finish_reason="length")
SLOW = outcome(1.0, [3.0, 4.0], 4.0, 5, finish_reason="stop")
REFUSED = outcome(1.0, [], 1.1, 0, error="HTTP 429")


def test_times_of_one_request() -> None:
    assert FAST.ttft_s == 0.5
    assert FAST.gaps_s == pytest.approx([0.1, 0.1])
    assert FAST.tpot_s == pytest.approx(0.1)
    assert FAST.e2e_s == 0.75
    assert SLOW.tpot_s == 0.25  # two pieces, five tokens
    assert REFUSED.ttft_s is None
    assert not REFUSED.is_whole


def test_figures_of_a_run() -> None:
    result = summary([FAST, SLOW, REFUSED], Targets(ttft_s=1.0, itl_s=0.2))
    assert (result["num_requests"], result["num_whole"]) == (3, 2)
    assert result["duration_s"] == 4.0
    assert result["request_rate"] == 0.5
    assert result["output_tok_s"] == 2.0
    assert result["goodput"] == 0.25
    assert result["errors"] == {"HTTP 429": 1}
    assert result["finish_reasons"] == {"length": 1, "stop": 1}
    assert result["ttft_s"] == {"p50": 0.5, "p95": 2.0, "p99": 2.0}


def test_nothing_answered_is_no_crash() -> None:
    result = summary([REFUSED], Targets())
    assert result["ttft_s"] == {"p50": None, "p95": None, "p99": None}
    assert result["output_tok_s"] == 0
    assert summary([], Targets())["num_requests"] == 0


@pytest.mark.parametrize(
    ("count", "p50", "p95", "p99"), [(1, 1, 1, 1), (2, 1, 2, 2), (100, 50, 95, 99), (1000, 500, 950, 990)]
)
def test_percentiles_are_values_that_occurred(count: int, p50: int, p95: int, p99: int) -> None:
    values = [float(value) for value in range(count, 0, -1)]
    assert percentiles(values) == {"p50": p50, "p95": p95, "p99": p99}
