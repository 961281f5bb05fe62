"""A trace that somebody dropped on the page."""

from __future__ import annotations

import pytest

from viz import trace_tab
from viz.trace_tab import SHIPPED, TraceViewer


def test_the_shipped_trace_is_shown() -> None:
    viewer = TraceViewer()
    viewer.add_run = lambda records, base: f"run of {len(records)}"
    words, shown = viewer.show_shipped()
    assert "steps in" in words
    assert shown["runs"][0]["id"].startswith("run of ")


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_tab, "MAX_BYTES", SHIPPED.stat().st_size)
    words, shown = TraceViewer().show(str(SHIPPED))
    assert "there is more than" in words
    assert shown == {"runs": []}
