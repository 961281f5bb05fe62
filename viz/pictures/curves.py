"""Lines over an axis.

Owns axes and scales. Never knows what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from viz.pictures.svg import HUES, Sheet

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 56, 46

Line = tuple[str, Sequence[tuple[float, float]]]
"""(name, points)."""


def lines(
    title: str,
    x_words: str,
    y_words: str,
    series: Sequence[Line],
    log_y: bool = False,
    log_x: bool = False,
    marks: Sequence[tuple[float, float, str]] = (),
) -> str:
    """Lines with a legend, axes in powers of ten where asked, else `y` from 0. `marks`: (x, y) and words to it."""
    sheet = Sheet(WIDTH, HEIGHT, title)
    sheet.text(16, 24, title, 13, kind="title")
    xs = [_up(x, log_x) for _, points in series for x, _ in points]
    ys = [_up(y, log_y) for _, points in series for _, y in points]
    low_x, high_x = min(xs), max(xs)
    low_y, high_y = 0.0, max(ys) * 1.08 or 1.0
    if log_y:
        low_y, high_y = float(math.floor(min(ys))), float(math.ceil(max(ys)))

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (_up(x, log_x) - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - (_up(y, log_y) - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)

    for tick in _ticks(low_y, high_y, log_y):
        _, at = place(low_x, 10**tick if log_y else tick)
        sheet.line([(LEFT, at), (WIDTH - RIGHT, at)], "var(--line)", 0.7)
        sheet.text(LEFT - 6, at + 4, f"1e{tick:g}" if log_y else f"{tick:g}", 10, "end", "dim")
    for tick in _ticks(low_x, high_x, log_x):
        at, _ = place(10**tick if log_x else tick, 10**low_y if log_y else 0)
        sheet.text(at, HEIGHT - BOTTOM + 14, f"1e{tick:g}" if log_x else f"{tick:g}", 10, "middle", "dim")
    sheet.text((LEFT + WIDTH) / 2, HEIGHT - 10, x_words, 11, "middle", "dim")
    sheet.text(16, TOP - 6, y_words, 11, kind="dim")
    across = float(WIDTH - RIGHT)
    for number, (name, points) in reversed(list(enumerate(series))):
        dashes = {} if number % 2 == 0 else {"stroke_dasharray": "6 3"}
        sheet.line([place(x, y) for x, y in points], HUES[number], 2, **dashes)
        if len(series) > 1:
            sheet.text(across, TOP - 6, name, 11.5, "end")
            across -= 6.6 * len(name) + 8
            sheet.line([(across - 22, TOP - 10), (across, TOP - 10)], HUES[number], 2, **dashes)
            across -= 40
    for x, y, words in marks:
        left, top = place(x, y)
        sheet.line([(left, top), (left + 26, top + 26)], "var(--ink)", 1)
        sheet.text(left + 30, top + 36, words, 11.5)
    return sheet.render()


def _up(y: float, log_y: bool) -> float:
    return math.log10(max(y, 1e-12)) if log_y else y


def _ticks(low: float, high: float, is_log: bool) -> list[float]:
    if is_log:
        return [float(power) for power in range(int(low), int(high) + 1)]
    raw = (high - low) / 5
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]
