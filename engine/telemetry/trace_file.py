"""Trace files: read as what they are, somebody else's bytes.

Owns the bounds of what is read, and what is made of a file that ends in the middle of a line. Never knows what a line
says (`engine.telemetry.trace_format`).
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from engine.telemetry.checked import TraceError
from engine.telemetry.record import StepRecord
from engine.telemetry.ring import BlockMap
from engine.telemetry.trace_format import Header, TraceStep, parse_header, parse_line

MAX_LINE_BYTES = 32 << 20
"""A step that reserves a run of a million blocks names each of them."""
MAX_FILE_BYTES = 1 << 30
"""Unpacked, where the file is packed."""
MAX_STEPS_IN_MEMORY = 50_000


class TraceReader:
    """Reads a trace step by step: `header` and `base` (None: from the first step on) at once, steps by iterating.

    A last line that was not written to its end is left out, and `is_cut` says so; `ending` are the words of an end in
    order. Plain or gzip. Use it in a `with`. Raises TraceError for whatever else is wrong.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        self.is_cut = False
        self.ending: str | None = None
        self._num_bytes, self._max_bytes = 0, max_bytes
        self._line_number = 0
        try:
            file = path.open("rb")
        except OSError as error:
            raise TraceError(f"{path.name} cannot be read ({error.strerror})") from None
        is_packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        self._file: IO[bytes] = gzip.GzipFile(fileobj=file) if is_packed else file  # type: ignore[assignment]
        self._raw = file
        try:
            self.header = self._read_header()
            self.base, self._first = self._read_base()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TraceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; twice is harmless."""
        self._file.close()
        self._raw.close()

    def __iter__(self) -> Iterator[TraceStep]:
        expected: int | None = self.base.step + 1 if self.base else 1
        item: TraceStep | BlockMap | str | None = self._first
        while item is not None and not isinstance(item, str):
            if isinstance(item, BlockMap):
                raise self._wrong(TraceError("a base stands in the middle"))
            if item.record.step != expected:
                raise self._wrong(TraceError(f"step {item.record.step} stands where step {expected} should"))
            expected += 1
            yield item
            item = self._read()
        self.ending = item

    def _read_header(self) -> Header:
        line = self._read_line()
        if line is None:
            raise self._wrong(TraceError("the file is empty or ends in its first line"))
        try:
            return parse_header(line)
        except TraceError as error:
            raise self._wrong(error) from None

    def _read_base(self) -> tuple[BlockMap | None, TraceStep | str | None]:
        item = self._read()
        if isinstance(item, BlockMap):
            following = self._read()
            if isinstance(following, BlockMap):
                raise self._wrong(TraceError("there are two bases"))
            return item, following
        return None, item

    def _read(self) -> TraceStep | BlockMap | str | None:
        line = self._read_line()
        if line is None:
            return None
        try:
            return parse_line(line)
        except TraceError as error:
            raise self._wrong(error) from None

    def _read_line(self) -> bytes | None:
        """The next whole line; None at the end, also when the last one is not whole."""
        self._line_number += 1
        try:
            line = self._file.readline(MAX_LINE_BYTES + 1)
        except (EOFError, OSError, zlib.error) as error:
            if isinstance(error, EOFError):  # a packed file that was not written to its end
                self.is_cut = True
                return None
            raise self._wrong(TraceError(f"it cannot be unpacked or read ({error})")) from None
        self._num_bytes += len(line)
        if len(line) > MAX_LINE_BYTES:
            raise self._wrong(TraceError(f"the line is longer than {MAX_LINE_BYTES >> 20} MB"))
        if self._num_bytes > self._max_bytes:
            raise self._wrong(TraceError(f"there is more than {self._max_bytes >> 20} MB of it"))
        if line and not line.endswith(b"\n"):
            self.is_cut = True
            return None
        return line or None

    def _wrong(self, error: TraceError) -> TraceError:
        return TraceError(f"line {self._line_number}: {error}")


@dataclass(frozen=True)
class Trace:
    """A whole trace in memory."""

    header: Header
    base: BlockMap | None
    steps: tuple[TraceStep, ...]
    is_cut: bool
    ending: str | None

    @property
    def records(self) -> tuple[StepRecord, ...]:
        """The step records."""
        return tuple(step.record for step in self.steps)

    def first_map(self) -> BlockMap:
        """The block map just before the first step; an empty pool where the trace begins with the engine."""
        if self.base is not None or not self.steps:
            return self.base or BlockMap()
        first = self.steps[0].record
        shares = self.header.settings.get("prefix_caching")
        known = shares if isinstance(shares, bool) else None
        return BlockMap(first.step - 1, first.num_blocks, first.block_size, prefix_caching=known)


def load(path: Path, max_steps: int = MAX_STEPS_IN_MEMORY, max_bytes: int = MAX_FILE_BYTES) -> Trace:
    """Read a whole trace. Raises TraceError, also when it has more steps or, unpacked, more bytes than that."""
    with TraceReader(path, max_bytes) as reader:
        steps: list[TraceStep] = []
        for step in reader:
            if len(steps) == max_steps:
                raise TraceError(f"it has more than {max_steps} steps; that is more than is kept in memory")
            steps.append(step)
        return Trace(reader.header, reader.base, tuple(steps), reader.is_cut, reader.ending)
