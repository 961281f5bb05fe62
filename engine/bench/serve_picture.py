"""The picture of a load test: when requests came, waited and were answered, and how the latencies spread.

Owns the figure, one HTML file that needs no network. Never measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engine.bench.outcomes import Outcome

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Okabe and Ito's, which colour-blind people can tell apart."""


def write_picture(file: Path, runs: Mapping[str, Sequence[Outcome]]) -> None:
    """Latencies over time on the left, as cumulative shares on the right; one colour a server."""
    figure = make_subplots(
        rows=2,
        cols=2,
        subplot_titles=("TTFT by time sent", "TTFT, share of requests", "Requests in flight", "ITL, share of gaps"),
        vertical_spacing=0.14,
    )
    for (name, outcomes), color in zip(runs.items(), COLORS * len(runs), strict=False):
        whole = [o for o in outcomes if o.is_whole and o.ttft_s is not None]
        line = {"color": color}
        marks = go.Scatter(
            x=[o.sent_s for o in whole], y=[o.ttft_s for o in whole], mode="markers", name=name, marker=line
        )
        figure.add_trace(marks, 1, 1)
        figure.add_trace(_share([o.ttft_s or 0.0 for o in whole], name, color), 1, 2)
        times, counts = _in_flight(outcomes)
        figure.add_trace(
            go.Scatter(x=times, y=counts, mode="lines", line=line | {"shape": "hv"}, name=name, showlegend=False), 2, 1
        )
        figure.add_trace(_share([gap for o in whole for gap in o.gaps_s], name, color), 2, 2)
    for row, col, x, y in (
        (1, 1, "s", "s"),
        (1, 2, "s", "share"),
        (2, 1, "s", "requests"),
        (2, 2, "s", "share"),
    ):
        figure.update_xaxes(title_text=x, rangemode="tozero", row=row, col=col)
        figure.update_yaxes(title_text=y, rangemode="tozero", row=row, col=col)
    figure.update_layout(template="plotly_white", height=760, title="Load test over HTTP")
    figure.write_html(file, include_plotlyjs=True)


def _share(values: Sequence[float], name: str, color: str) -> go.Scatter:
    ordered = sorted(values)
    shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
    return go.Scatter(x=ordered, y=shares, mode="lines", line={"color": color}, name=name, showlegend=False)


def _in_flight(outcomes: Sequence[Outcome]) -> tuple[list[float], list[int]]:
    changes = sorted([(o.sent_s, 1) for o in outcomes] + [(o.ended_s or o.sent_s, -1) for o in outcomes])
    times, counts, count = [], [], 0
    for at, change in changes:
        count += change
        times.append(at)
        counts.append(count)
    return times, counts
