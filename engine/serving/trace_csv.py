"""Production traces in the format of Azure's public LLM inference dataset: `TIMESTAMP,ContextTokens,GeneratedTokens`.

Owns the reading of such files, of which nothing is trusted: sizes are bounded, and what is wrong is told by line and
column, never by repeating the file. See Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase
Splitting", ISCA 2024. Never knows what is done with the rows.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

MAX_TRACE_BYTES = 4_000_000
MAX_TRACE_ROWS = 50_000
MAX_LINE_CHARS = 200
MAX_ROW_TOKENS = 1_000_000
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceError(ValueError):
    """A trace file that can't be used. The message names the line and the column, not what stands there."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace; `arrival_s` counts from the first one."""

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int


def read_trace(path: str | os.PathLike[str], max_rows: int = MAX_TRACE_ROWS) -> tuple[TraceRow, ...]:
    """Rows of the file at `path`, in order of time; at most the first `max_rows`. Raises TraceError."""
    size = os.path.getsize(path)
    if size > MAX_TRACE_BYTES:
        raise TraceError(
            f"the file has {size:,} bytes and a trace may have {MAX_TRACE_BYTES:,}; keep its first lines only"
        )
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            return parse_trace(lines, max_rows)
    except UnicodeDecodeError as error:
        raise TraceError("the file is not text in UTF-8; a trace is a CSV file: " + ",".join(COLUMNS)) from error


def parse_trace(lines: Iterable[str], max_rows: int = MAX_TRACE_ROWS) -> tuple[TraceRow, ...]:
    """Rows of a trace given line by line. A line that is too long, a missing column, a number out of range and an
    impossible time each raise TraceError; empty lines are passed over."""
    rows: list[tuple[float, int, int]] = []
    reader = csv.reader(_bounded(lines))
    try:
        header = next(reader, None)
        where = _columns(header)
        for cells in reader:
            if not cells:
                continue
            if len(rows) == max_rows:
                break
            rows.append(_row(cells, where, reader.line_num))
    except csv.Error as error:
        raise TraceError(f"line {reader.line_num} is not CSV; write {','.join(COLUMNS)}, one request a line") from error
    if not rows:
        raise TraceError(f"the trace has no request: expected lines below the header {','.join(COLUMNS)}")
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    return tuple(TraceRow(time - first, prompt, output) for time, prompt, output in rows)


def _bounded(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if len(line) > MAX_LINE_CHARS:
            raise TraceError(f"line {number} is longer than {MAX_LINE_CHARS} characters; this is not such a trace")
        yield line


def _columns(header: list[str] | None) -> tuple[int, int, int]:
    names = [name.strip().lower() for name in header or []]
    missing = [name for name in COLUMNS if name.lower() not in names]
    if missing:
        raise TraceError(f"the first line must name the columns {','.join(COLUMNS)}; missing: {', '.join(missing)}")
    time, prompt, output = (names.index(name.lower()) for name in COLUMNS)
    return time, prompt, output


def _row(cells: list[str], where: tuple[int, int, int], line: int) -> tuple[float, int, int]:
    if len(cells) <= max(where):
        raise TraceError(f"line {line} has {len(cells)} columns, fewer than its header")
    prompt = _count(cells[where[1]], COLUMNS[1], line)
    output = _count(cells[where[2]], COLUMNS[2], line)
    return _time_s(cells[where[0]], line), prompt, output


def _count(cell: str, name: str, line: int) -> int:
    text = cell.strip()
    # isascii: int() also takes digits of other scripts, and underscores
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= MAX_ROW_TOKENS):
        raise TraceError(f"line {line}: {name} must be a whole number from 1 to {MAX_ROW_TOKENS:,}")
    return int(text)


def _time_s(cell: str, line: int) -> float:
    try:
        moment = datetime.fromisoformat(cell.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise TraceError(
            f"line {line}: TIMESTAMP must look like 2023-11-16 18:15:46.680590 (date, time, fractions of a second)"
        ) from error
