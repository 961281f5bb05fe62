"""The benchmarks' pictures: bars side by side, each figure one HTML file that needs no network.

Owns their look. Never measures. Plotly is imported only when a picture is drawn.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which colour-blind people can tell apart; each name keeps its colour over all panels."""

Spread = Sequence[float]
"""(least, most) of the rounds."""


@dataclass(frozen=True)
class Panel:
    """Bars over `names`; `series`: what is compared → a value for each name; `spreads` likewise, where known."""

    title: str
    unit: str
    names: Sequence[str]
    series: Mapping[str, Sequence[float]]
    spreads: Mapping[str, Sequence[Spread]] | None = None


def add_option(parser: argparse.ArgumentParser) -> None:
    """`--picture FILE`."""
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also draw the result as an HTML picture")


def bars(file: Path, title: str, panels: Sequence[Panel]) -> None:
    """Write panels beside each other."""
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=len(panels), subplot_titles=[panel.title for panel in panels])
    colors: dict[str, str] = {}
    for column, panel in enumerate(panels, 1):
        for name, values in panel.series.items():
            is_new = name not in colors
            colors.setdefault(name, COLORS[len(colors) % len(COLORS)])
            look: dict[str, Any] = {"marker_color": colors[name], "legendgroup": name, "showlegend": is_new}
            error = _error(values, panel.spreads[name]) if panel.spreads else None
            figure.add_bar(x=list(panel.names), y=list(values), name=name, error_y=error, row=1, col=column, **look)
        figure.update_yaxes(title_text=panel.unit, rangemode="tozero", row=1, col=column)
    figure.update_layout(template="plotly_white", title=title, barmode="group", height=460)
    figure.write_html(file, include_plotlyjs=True)


def _error(values: Sequence[float], spreads: Sequence[Spread]) -> dict[str, Any]:
    up = [most - value for value, (_, most) in zip(values, spreads, strict=True)]
    down = [value - least for value, (least, _) in zip(values, spreads, strict=True)]
    return {"type": "data", "array": up, "arrayminus": down}
