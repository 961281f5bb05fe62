"""The requests' hues: told apart by every kind of eye, and seen on the cards behind them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from tests.unit.viz.javascript import run_js

CARDS = {"LIGHT": "#ffffff", "DARK": "#171c24"}
LEAST_APART = 9.0
"""In OKLab, × 100. The difference that is just noticed is about 2."""
LEAST_CONTRAST = 3.0
"""WCAG 2.2, 1.4.11: graphical objects."""
LEAST_LETTER_CONTRAST = 4.5

# Machado, Oliveira, Fernandes: "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009.
EYES = {
    "all cones": np.eye(3),
    "no red cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green cones": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue cones": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
# Ottosson's OKLab: linear sRGB → cone responses → (after a cube root) lightness, a, b.
TO_CONES = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
TO_LAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
          [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip


def linear(color: str) -> np.ndarray:
    """#rrggbb as linear light, (3,)."""
    c = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def oklab(light: np.ndarray) -> np.ndarray:
    return np.asarray(TO_LAB) @ np.cbrt(np.asarray(TO_CONES) @ np.clip(light, 0, 1))


def contrast(one: str, other: str) -> float:
    """WCAG's ratio."""
    low, high = sorted(float(np.dot([0.2126, 0.7152, 0.0722], linear(color))) + 0.05 for color in (one, other))
    return high / low


@pytest.mark.parametrize("theme", list(CARDS))
def test_eight_hues_that_any_eye_tells_apart(theme: str) -> None:
    seen = run_js("const t = await load('theme.js'); return t[given].map((c) => [c, t.inkOn(c)]);", theme)
    hues = [hue for hue, _ in seen]
    assert len(set(hues)) == 8
    for eyes, matrix in EYES.items():
        labs = {hue: oklab(np.asarray(matrix) @ linear(hue)) * 100 for hue in hues}
        for one, other in combinations(hues, 2):
            assert np.linalg.norm(labs[one] - labs[other]) >= LEAST_APART, (eyes, one, other)
    for hue, ink in seen:
        assert contrast(hue, CARDS[theme]) >= LEAST_CONTRAST, hue
        assert contrast(hue, ink) >= LEAST_LETTER_CONTRAST, hue


def test_after_eight_the_pattern_changes_and_the_colour_comes_round() -> None:
    code = """
        const { requestColor, requestPattern } = await load("theme.js");
        return Array.from({ length: 24 }, (_, i) => [requestColor(i + 1, false), requestPattern(i + 1)]);
    """
    looks = [tuple(look) for look in run_js(code)]
    assert len(set(looks)) == 24
    assert [pattern for _, pattern in looks] == ["plain"] * 8 + ["stripes"] * 8 + ["dots"] * 8
    assert [color for color, _ in looks[:8]] == [color for color, _ in looks[8:16]]
