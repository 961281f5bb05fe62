"""The batch strip: who was in which step. Requests are rows, steps are columns.

Owns what a cell means. Never knows how the run came about.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.telemetry.record import EventKind, StepRecord
from viz.pictures.svg import Sheet, hue, letter

CELL = 17
LEFT = 34
ROW_GAP = 3
LEGEND = (
    ("prefill", "the prompt is computed (number: tokens)"),
    ("decode", "one token"),
    ("wait", "waits"),
    ("padding", "padding, computed for nothing"),
    ("inactive", "inactive slot, computed for nothing"),
    ("preempted", "preempted"),
)

Cell = tuple[str, int]
"""(kind, number of tokens)."""


def cells_of(records: Sequence[StepRecord]) -> dict[int, dict[int, Cell]]:
    """request id → column (0 for the first record) → what it did."""
    cells: dict[int, dict[int, Cell]] = {}
    cohort_ended: list[int] = []
    for column, record in enumerate(records):
        preempted = {event.request_id for event in record.events if event.kind is EventKind.PREEMPTED}
        for request_id in (*record.pending_prefill, *record.pending_decode):
            cells.setdefault(request_id, {})[column] = ("preempted" if request_id in preempted else "wait", 0)
        for request_id in record.active_prefill:
            tokens = record.num_tokens.get(request_id, 0)
            cells[request_id][column] = ("prefill", tokens) if tokens else ("padding", record.padding[request_id])
        for request_id in record.active_decode:
            cells[request_id][column] = ("decode", 1)
        if not record.num_inactive_rows:
            cohort_ended.clear()
        for request_id in cohort_ended[: record.num_inactive_rows]:
            cells[request_id][column] = ("inactive", 0)
        cohort_ended += [
            event.request_id
            for event in record.events
            if event.kind is EventKind.FINISHED and event.request_id is not None
        ]
    return cells


def height_of(records: Sequence[StepRecord]) -> float:
    """How tall `draw` makes it, with its heading and axis."""
    return 26 + len(cells_of(records)) * (CELL + ROW_GAP) + 20


def draw(sheet: Sheet, y: float, heading: str, records: Sequence[StepRecord], columns: int | None = None) -> None:
    """Draw one run at height `y`."""
    cells = cells_of(records)
    sheet.text(LEFT, y + 14, heading, 13, kind="title")
    top = y + 26
    for row, request_id in enumerate(sorted(cells)):
        at = top + row * (CELL + ROW_GAP)
        sheet.text(LEFT - 8, at + 13, letter(request_id), 12, "end", "title")
        for column, (kind, tokens) in cells[request_id].items():
            if columns is None or column < columns:
                cell(sheet, LEFT + column * CELL, at, kind, tokens, hue(request_id))
    bottom = top + len(cells) * (CELL + ROW_GAP)
    count = min(len(records), columns or len(records))
    for column in range(0, count, 4 if count <= 60 else 10):
        sheet.text(LEFT + column * CELL + CELL / 2, bottom + 12, str(records[column].step), 10, "middle", "dim")


def cell(sheet: Sheet, x: float, y: float, kind: str, tokens: int, color: str) -> None:
    """One cell."""
    size = CELL - 1
    if kind == "prefill":
        sheet.rect(x, y, size, CELL, color)
        sheet.text(x + size / 2, y + 12.5, str(tokens), 9 if tokens < 100 else 7.5, "middle", "on")
    elif kind == "decode":
        sheet.rect(x, y, size, CELL, color, opacity=0.55)
    elif kind in ("inactive", "padding"):
        sheet.rect(x, y, size, CELL, "url(#waste)")
    elif kind == "preempted":
        sheet.rect(x, y, size, CELL, "var(--card)", "var(--bad)")
        sheet.text(x + size / 2, y + 13, "×", 13, "middle", "bad")
    else:
        sheet.rect(x, y, size, CELL, "url(#wait)")


def draw_legend(sheet: Sheet, y: float, kinds: Sequence[str], x: float = LEFT) -> None:
    """Explain the cells that occur."""
    for kind, words in LEGEND:
        if kind in kinds:
            cell(sheet, x, y, kind, 9, "#5b6675")
            sheet.text(x + CELL + 4, y + 13, words, 11, kind="dim")
            x += CELL + 18 + 5.8 * len(words)


def picture(title: str, runs: Sequence[tuple[str, Sequence[StepRecord]]], columns: int | None = None) -> str:
    """One or several runs below each other, on one axis of steps."""
    longest = max(min(len(records), columns or len(records)) for _, records in runs)
    width = max(LEFT + longest * CELL + 16, 700)
    sheet = Sheet(width, 16 + sum(height_of(records) for _, records in runs) + 26, title)
    y, kinds = 8.0, set()
    for heading, records in runs:
        draw(sheet, y, heading, records, columns)
        kinds |= {kind for row in cells_of(records).values() for kind, _ in row.values()}
        y += height_of(records)
    draw_legend(sheet, y + 4, sorted(kinds))
    return sheet.render()
