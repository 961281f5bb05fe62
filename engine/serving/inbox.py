"""What other threads want of the engine thread, in order of arrival, and how it sleeps until something comes.

Owns the lock between them. Never knows what an entry does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Inbox:
    """Entries are calls to be made in the engine thread. `lock` may be held to post several at once, unseen between."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self._entries: deque[Callable[[], object]] = deque()
        self._is_closing = False

    def post(self, entry: Callable[[], object]) -> None:
        """Have `entry` called in the engine thread, between two steps."""
        with self.lock:
            self._entries.append(entry)
            self.lock.notify_all()

    def run_all(self) -> None:
        """In the engine thread: make all calls that wait."""
        while True:
            with self.lock:
                if not self._entries:
                    return
                entry = self._entries.popleft()
            entry()

    def wait(self, timeout_s: float | None) -> None:
        """In the engine thread: sleep until there is an entry, the inbox closes, or the time is over."""
        with self.lock:
            if not self._entries and not self._is_closing:
                self.lock.wait(timeout_s)

    def open(self) -> None:
        """From now on `wait` waits."""
        with self.lock:
            self._is_closing = False

    def close(self) -> None:
        """Wake the engine thread, and never let it sleep again."""
        with self.lock:
            self._is_closing = True
            self.lock.notify_all()

    def clear(self) -> None:
        """Forget all entries."""
        with self.lock:
            self._entries.clear()
