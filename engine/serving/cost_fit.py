"""A cost model for this very machine, fitted to the steps it has just done.

Owns the least-squares fit of `engine.simulated_runner.CostModel` to step records. Never knows what it is used for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.simulated_runner import CostModel
from engine.telemetry.record import StepRecord

MIN_STEPS = 40
"""Fewer steps than this say too little."""


@dataclass(frozen=True, slots=True)
class CostFit:
    """A fitted model, the number of steps behind it, and the median of |predicted − measured| ÷ measured."""

    model: CostModel
    num_steps: int
    median_error: float


def fit_cost_model(records: Sequence[StepRecord]) -> CostFit | None:
    """Fit seconds a step, a row and a (query, key) pair; None when there are too few steps to tell.

    The fit weighs each step by 1 ÷ its measured time, so that short decode steps count as much as long prefills, and
    is done again without the worst twentieth: other work of the machine makes steps late, never early. A coefficient
    that comes out negative is set to zero and the others are fitted again.
    """
    steps = [record for record in records if record.num_tokens and record.duration_s > 0]
    if len(steps) < MIN_STEPS:
        return None
    features = np.array([_features(record) for record in steps])  # (S, 3)
    measured = np.array([record.duration_s for record in steps])  # (S,)
    weights = _solve(features, measured)
    errors = np.abs(features @ weights - measured) / measured
    kept = errors <= np.quantile(errors, 0.95)
    weights = _solve(features[kept], measured[kept])
    errors = np.abs(features @ weights - measured) / measured
    step_s, row_s, context_s = (float(weight) for weight in weights)
    return CostFit(CostModel(step_s, row_s, context_s), len(steps), float(np.median(errors)))


def _features(record: StepRecord) -> tuple[float, float, float]:
    rows = pairs = 0
    for request_id, num_tokens in record.num_tokens.items():
        own = num_tokens + record.padding.get(request_id, 0)
        rows += own
        pairs += own * record.computed.get(request_id, num_tokens)
    return 1.0, float(rows + record.num_inactive_rows), float(pairs)


def _solve(features: np.ndarray, measured: np.ndarray) -> np.ndarray:
    scaled = features / measured[:, None]  # each equation divided by its measured time: relative errors count
    units = np.maximum(np.abs(scaled).max(axis=0), 1e-30)
    used = [0, 1, 2]
    weights = np.zeros(3)
    while used:
        solution, *_ = np.linalg.lstsq(scaled[:, used] / units[used], np.ones(len(measured)), rcond=1e-9)
        if (solution >= 0).all():
            weights[used] = solution / units[used]
            return weights
        used.pop(int(np.argmin(solution)))
    return weights
