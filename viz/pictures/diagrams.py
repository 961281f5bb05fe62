"""Pictures of one moment of a run: the padded rectangle, and the times of one request.

Owns their layout. Never knows how the run came about.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.telemetry.record import Event, EventKind, StepRecord
from viz.pictures.strip import CELL, LEFT, draw_legend
from viz.pictures.strip import cell as draw_cell
from viz.pictures.svg import Sheet, hue, letter


def rectangle(title: str, records: Sequence[StepRecord]) -> str:
    """Every position that a static batch computes, one column a position: padding, prompt, answer, inactive slots."""
    rows = positions_of(records)
    width = max(len(row) for row in rows.values())
    sheet = Sheet(max(LEFT + width * CELL + 20, 700), 40 + len(rows) * (CELL + 3) + 48, title)
    sheet.text(LEFT, 22, title, 13, kind="title")
    for index, (request_id, row) in enumerate(sorted(rows.items())):
        y = 36 + index * (CELL + 3)
        sheet.text(LEFT - 8, y + 13, letter(request_id), 12, "end", "title")
        number = 0
        for column, kind in enumerate(row):
            number += kind == "prefill"
            draw_cell(sheet, LEFT + column * CELL, y, kind, number, hue(request_id))
    draw_legend(sheet, 36 + len(rows) * (CELL + 3) + 10, ["prefill", "decode"])
    draw_legend(sheet, 36 + len(rows) * (CELL + 3) + 31, ["padding", "inactive"])
    return sheet.render()


def positions_of(records: Sequence[StepRecord]) -> dict[int, list[str]]:
    """request → the kind of each position that was computed for it."""
    rows: dict[int, list[str]] = {}
    ended: list[int] = []
    for record in records:
        for request_id in record.active_prefill:
            row = rows.setdefault(request_id, [])
            row += ["padding"] * record.padding.get(request_id, 0)
            row += ["prefill"] * record.num_tokens.get(request_id, 0)
        for request_id in record.active_decode:
            rows[request_id].append("decode")
        for request_id in ended[: record.num_inactive_rows]:
            rows[request_id].append("inactive")
        ended += [e.request_id for e in record.events if e.kind is EventKind.FINISHED and e.request_id is not None]
    return rows


def timeline(title: str, records: Sequence[StepRecord], request_id: int) -> str:
    """Queue, prefill, decode, TTFT, a gap between tokens, and end to end, where they are in one request's life."""
    token_ends = [r.time_s + r.duration_s for r in records if request_id in r.outputs]
    arrived = _event(records, request_id, EventKind.ARRIVED).details["arrival_s"]
    queue_s = _event(records, request_id, EventKind.ADMITTED).details["queue_s"]
    ended = token_ends[-1]
    sheet = Sheet(680, 190, title)
    left, room = 24, 632

    def at(seconds: float) -> float:
        return left + (seconds - arrived) / (ended - arrived) * room

    sheet.text(left, 24, title, 13, kind="title")
    admitted = arrived + queue_s
    for begin, end, words, fill in (
        (arrived, admitted, "queue", "url(#wait)"),
        (admitted, token_ends[0], "prefill", hue(request_id)),
        (token_ends[0], ended, "decode", "var(--sunken)"),
    ):
        sheet.rect(at(begin), 70, at(end) - at(begin), 26, fill, "var(--line)")
        sheet.text((at(begin) + at(end)) / 2, 87, words, 11.5, "middle", "on" if words == "prefill" else "")
    for number, end in enumerate(token_ends, start=1):
        sheet.line([(at(end), 64), (at(end), 102)], hue(request_id), 2)
        sheet.text(at(end), 58, f"token {number}", 10, "middle" if number < len(token_ends) else "end", "dim")
    spans = [
        (arrived, token_ends[0], f"TTFT {1000 * (token_ends[0] - arrived):.1f} ms", 118),
        (token_ends[0], token_ends[1], f"ITL {1000 * (token_ends[1] - token_ends[0]):.1f} ms", 118),
        (arrived, ended, f"E2E {1000 * (ended - arrived):.1f} ms", 150),
    ]
    for begin, end, words, y in spans:
        sheet.line([(at(begin) + 1, y), (at(end) - 1, y)], "var(--ink)", 1.2)
        for x in (at(begin) + 1, at(end) - 1):
            sheet.line([(x, y - 4), (x, y + 4)], "var(--ink)", 1.2)
        sheet.text((at(begin) + at(end)) / 2, y + 16, words, 11.5, "middle")
    return sheet.render()


def _event(records: Sequence[StepRecord], request_id: int, kind: EventKind) -> Event:
    return next(e for record in records for e in record.events if e.request_id == request_id and e.kind is kind)
