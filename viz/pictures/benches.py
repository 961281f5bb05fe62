"""Pictures of what was measured: growth of a step's cost, and where the time of one step goes.

Drawn from the JSON files that the benchmarks wrote (`notes/measured/`). Owns these pictures. Never measures.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from viz.pictures import curves
from viz.pictures.svg import HUES, Sheet

FOLDER = Path(__file__).resolve().parents[2] / "notes" / "measured"

NAMES = {"running": "running requests", "pool": "pool, blocks", "context": "context, tokens", "queue": "queue"}


def growth(kind: str) -> str:
    """`simulated` (scheduling and records alone) or `real`: milliseconds a step, both axes logarithmic."""
    title = {"simulated": "Scheduling and records alone", "real": "The whole step on the real model"}[kind]
    series = [
        (NAMES[curve["grows"]], [(float(p["value"]), 1e3 * p["step_s"]) for p in curve["points"]])
        for curve in _read("growth")[kind]
    ]
    return curves.lines(title, "size of what grows", "ms a step", series, log_y=True, log_x=True)


def profile() -> str:
    """A bar for each batch size, its parts in the table's order."""
    batches: dict[str, Any] = _read("profile")["batches"]
    names = list(dict.fromkeys(name for one in batches.values() for name in one["groups"]))
    longest = max(one["profiled_ms"] for one in batches.values())
    left, width, height = 70, 640, 64 + 46 * len(batches) + 18 * -(-len(names) // 3)
    sheet = Sheet(width, height, "Where one decode step's time goes")
    sheet.text(16, 24, "Where one decode step's time goes", 13, kind="title")
    for row, (batch, one) in enumerate(batches.items()):
        at, top = float(left), 40 + 46 * row
        sheet.text(left - 8, top + 20, f"batch {batch}", 11.5, "end")
        for name, ms in one["groups"].items():
            wide = (width - left - 76) * ms / longest
            sheet.rect(at, top, wide, 30, **_look(names.index(name)))
            at += wide
        sheet.text(at + 6, top + 20, f"{one['profiled_ms']:.1f} ms", 11.5)
    for number, name in enumerate(names):
        x, y = 16 + 208 * (number % 3), 52 + 46 * len(batches) + 18 * (number // 3)
        sheet.rect(x, y, 12, 12, **_look(number))
        sheet.text(x + 18, y + 10, name, 11)
    return sheet.render()


def _look(number: int) -> dict[str, Any]:
    """A colour of its own; the second time round it is paler."""
    return {"fill": HUES[number % len(HUES)], "opacity": 1 if number < len(HUES) else 0.45}


def _read(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return result
