"""A log line now and then while something large arrives. Knows nothing of what arrives or from where."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger(__name__)

INTERVAL_S = 5.0


@contextlib.contextmanager
def log_growth(folder: Path, what: str, total_bytes: int | None = None) -> Iterator[None]:
    """While the block runs, log every five seconds by how many megabytes `folder` has grown."""
    stop = threading.Event()
    bytes_before = folder_bytes(folder)

    def watch() -> None:
        of_total = f" of {total_bytes / 1e6:.0f}" if total_bytes else ""
        while not stop.wait(INTERVAL_S):
            log.info("%s: %.0f%s MB so far", what, (folder_bytes(folder) - bytes_before) / 1e6, of_total)

    watcher = threading.Thread(target=watch, name="download-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below `folder`; links and files that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
    return total
