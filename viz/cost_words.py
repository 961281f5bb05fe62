"""A simulated step's costs in plain units.

Owns these sentences. Never knows how a cost model is fitted (`engine.serving.cost_fit`).
"""

from __future__ import annotations

from engine.serving.cost_fit import CostFit
from engine.simulated_runner import CostModel
from viz.words import seconds

ROUGH_FIT = 0.3
"""A fitted cost model whose typical error is larger than this says little about times."""


def cost_words(model: CostModel, fit: CostFit | None) -> str:
    """What a simulated step is taken to cost, where that comes from, and how far it can be trusted."""
    costs = [
        (model.step_s, "{} a step"),
        (model.row_s, "{} for each token computed in it"),
        (model.context_s, "{} for each pair of tokens that attention compares"),
    ]
    words = ", ".join(of.format(_duration(value)) for value, of in costs if value > 0)
    if fit is None:
        return f"{words}. That is assumed, until this machine has done some steps."
    source = f"{words}, as fitted to this machine's last {fit.num_steps:,} steps."
    if fit.median_error > ROUGH_FIT:
        return f"{source} Times are rough on this machine just now: trust the steps."
    return f"{source} The median step was {100 * fit.median_error:.0f} % off."


def _duration(value: float) -> str:
    if value >= 0.00095:
        return seconds(value)
    return f"{1e6 * value:.3g} µs" if value >= 0.95e-6 else f"{1e9 * value:.3g} ns"
