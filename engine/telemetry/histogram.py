"""A Prometheus histogram that takes many equal observations at once.

Owns bucket counts and the sum. Never knows what is measured. The requests of one step get their tokens at the same
moment, so their gaps between tokens are mostly equal: one `observe(gap, count)` stands for all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.utils import floatToGoString


class Histogram:
    """Counts by upper bound; `bounds` ascend and the bound of +Inf is added."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` observations of `value`."""
        self._counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """How many observations there are."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound as Prometheus writes it, observations at or below it), as `HistogramMetricFamily` takes them."""
        pairs: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            pairs.append((floatToGoString(bound), float(total)))
        return pairs


def one_two_five(largest: int) -> tuple[float, ...]:
    """Bounds 1, 2, 5, 10, 20, 50, … up to `largest`, as vLLM chooses them for lengths in tokens."""
    bounds: list[float] = []
    scale = 1
    while True:
        for digit in (1, 2, 5):
            if digit * scale > largest:
                return tuple(bounds)
            bounds.append(float(digit * scale))
        scale *= 10
