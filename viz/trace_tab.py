"""A saved trace on the page: drop it, and the panels show that run, whatever this server is doing.

Owns these components. Never knows a trace's lines (`engine.telemetry.trace_format`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from engine.telemetry.record import EventKind, StepRecord
from engine.telemetry.ring import BlockMap
from engine.telemetry.trace import Trace, TraceError, load
from viz import panels
from viz.options import LONG

SHIPPED = Path(__file__).resolve().parents[1] / "assets" / "playground-trace.jsonl.gz"
MAX_STEPS = 20_000
MAX_BYTES = 64 << 20
"""Unpacked. Sixteen packed megabytes, which anybody may send, could be a thousand of them."""


class TraceViewer:
    """The handlers. `add_run` keeps a run's records for the panels and gives an id for them."""

    def __init__(self) -> None:
        self.add_run: Callable[[Sequence[StepRecord], BlockMap | None], str] | None = None

    def show(self, path: str | None) -> tuple[str, dict[str, Any]]:
        """What is in the file, in words, and its pictures; words alone when it cannot be read."""
        if not path:
            return "", {"runs": []}
        try:
            trace = load(Path(path), MAX_STEPS, MAX_BYTES)
        except TraceError as error:
            return f"⚠ This trace cannot be shown: {plain_words(str(error))}", {"runs": []}
        if not trace.records:
            return "There is no step in this trace.", {"runs": []}
        words = about(trace)
        if self.add_run is None:
            return words, {"runs": []}
        run = {"id": self.add_run(trace.records, trace.first_map()), "label": "recorded run", "opens": "start"}
        return words, {"runs": [run]}

    def show_shipped(self) -> tuple[str, dict[str, Any]]:
        """The one that ships with the project."""
        return self.show(str(SHIPPED))


def about(trace: Trace) -> str:
    """One line: model, steps, requests, seconds."""
    last = trace.records[-1]
    arrived = sum(event.kind is EventKind.ARRIVED for record in trace.records for event in record.events)
    seconds = last.time_s + last.duration_s - trace.records[0].time_s
    model = plain_words(", ".join(str(value) for value in trace.header.model.values()))
    end = " It ends in the middle of a step." if trace.is_cut else ""
    return f"{model}: {len(trace.records):,} steps in {seconds:.1f} s, {arrived:,} requests.{end}"


def build() -> TraceViewer:
    """Lay out and wire the tab; call inside a `gr.Tab`. The page sets `add_run` of what it returns."""
    viewer = TraceViewer()
    gr.Markdown(
        "A run recorded with `--record FILE`, or from `GET /engine/trace`. It needs no model and stays on this server "
        "only as long as it is shown. No prompt and no answer is in it.",
        elem_id="trace-about",
    )
    with gr.Row(equal_height=True):
        file = gr.File(label="Drop a trace here (.jsonl or .jsonl.gz)", height=150, elem_id="trace-file", scale=3)
        shipped = gr.Button("Show the run that ships with this page", min_width=220, elem_id="trace-shipped", scale=1)
    words = gr.Markdown("", elem_id="trace-words")
    pictures = panels.panel_html("compare", elem_id="panels-trace")
    file.change(viewer.show, file, [words, pictures], **LONG)
    shipped.click(viewer.show_shipped, None, [words, pictures], **LONG)
    return viewer


def plain_words(text: str) -> str:
    """Words from a file that anybody may have made, so that a page shows them as words."""
    return "".join(c if c.isalnum() or c in " .,:;()-+=×'\"?%" else " " for c in text)[:300]
