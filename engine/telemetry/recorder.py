"""Writes the run's trace to a file while it happens (`--record FILE`).

Owns the file and a thread that writes it, so that a slow disk never holds up a step. Bounded in memory (records that
wait to be written) and on disk; when either bound is met, or the disk is full, recording ends with one line in the log
and the engine goes on. Every step is one whole line, handed to the system as soon as it is written, so that after a
crash the file is whole up to the last of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from engine.telemetry.journal import Entry, Journal
from engine.telemetry.record import StepRecord
from engine.telemetry.trace_format import Header, end_line, header_line, step_line

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 512 << 20
MAX_WAITING = 4096
"""Records in memory that the disk has not taken yet."""
MODEL_KEYS = ("model", "device", "dtype", "quantization")


class Recorded(Protocol):
    """What the recorder asks of the engine service."""

    @property
    def journal(self) -> Journal:
        """The present engine's journal; another one after a restart."""

    def state(self) -> dict[str, Any]:
        """The newest snapshot."""


class TraceRecorder:
    """A listener of step records that writes a trace. Hand it to `EngineService.add_listener`, and `close` it at last.

    An older file of that name is kept as FILE.old. When the engine is restarted after it died, the new run goes to a
    file of its own, FILE-2. Raises OSError when the file cannot be made.
    """

    def __init__(
        self,
        service: Recorded,
        path: Path,
        max_bytes: int = MAX_FILE_BYTES,
        open_file: Callable[[Path], int] | None = None,
    ) -> None:
        self._service = service
        self._path = path
        self._max_bytes = max_bytes
        self._open_file = open_file or _open_new
        self._num_files = 0
        self._fd = -1
        self._num_bytes = 0
        self._stopped: str | None = None
        self._journal = service.journal
        self._start(header_of(service))
        # A header begins a new file; None ends the last one.
        self._waiting: queue.Queue[tuple[StepRecord, Entry] | Header | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="trace", daemon=True)
        self._thread.start()

    @property
    def stopped(self) -> str | None:
        """Why nothing is written any more; None while it is."""
        return self._stopped

    def __call__(self, record: StepRecord) -> None:
        """Take a record in the engine thread; costs a place in a queue."""
        if self._stopped is not None:
            return
        try:
            if self._service.journal is not self._journal:
                self._journal = self._service.journal
                self._waiting.put_nowait(header_of(self._service))
            entry = self._journal.newest
            if entry is None or entry.step != record.step:  # no engine of ours: there is a record and no more
                entry = Entry(record.step)
            self._waiting.put_nowait((record, entry))
        except queue.Full:
            self._stop(f"the disk is too slow: {MAX_WAITING} steps wait to be written")

    def flush(self) -> None:
        """Wait until everything that was taken is in the file."""
        self._waiting.join()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits, and end the file in order."""
        if self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)

    # -- the writing thread ------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                if self._stopped is None:
                    self._write(item)
                self._waiting.task_done()
            if self._stopped is None:
                self._put(end_line("the recording was ended in order"))
        finally:
            if self._fd >= 0:
                os.close(self._fd)

    def _write(self, item: tuple[StepRecord, Entry] | Header) -> None:
        if isinstance(item, Header):
            os.close(self._fd)
            try:
                self._start(item)
            except OSError as error:
                self._fd = -1
                self._stop(error.strerror or str(error))
            return
        line = step_line(*item)
        if self._num_bytes + len(line) > self._max_bytes:
            why = f"the file has reached its limit of {self._max_bytes >> 20} MB"
            self._put(end_line(why))
            self._stop(why)
        else:
            self._put(line)

    def _start(self, header: Header) -> None:
        self._num_files += 1
        name = self._path if self._num_files == 1 else self._path.with_stem(f"{self._path.stem}-{self._num_files}")
        self._fd = self._open_file(name)
        self._num_bytes = 0
        self._put(header_line(header))

    def _put(self, line: str) -> None:
        """One line, whole or not at all."""
        data = line.encode() + b"\n"
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
            self._num_bytes += len(data)
        except OSError as error:
            if written:
                os.ftruncate(self._fd, self._num_bytes)
            self._stop(error.strerror or str(error))

    def _stop(self, why: str) -> None:
        if self._stopped is None:
            self._stopped = why
            log.error("Recording to %s has stopped: %s. The engine goes on", self._path.name, why)


def header_of(service: Recorded) -> Header:
    """The first line of a trace of this service's present run."""
    state, journal = service.state(), service.journal
    model = {name: state[name] for name in MODEL_KEYS if name in state}
    return Header(state["epoch"], journal.start_s, journal.settings, model)


def _open_new(path: Path) -> int:
    if path.exists():
        path.replace(path.with_name(path.name + ".old"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
