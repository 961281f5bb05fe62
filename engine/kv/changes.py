"""Collects what happens to blocks between two steps, for the plan and for the record."""

from __future__ import annotations

from collections.abc import Mapping

from engine.kv.layout import Changes
from engine.scheduling.plan import BlockCopy
from engine.telemetry.record import BlockChanges


class ChangeLog:
    """Written to by a layout as it goes, emptied by `take` once a step."""

    def __init__(self) -> None:
        self.new: dict[int, None] = {}
        self.copies: list[BlockCopy] = []
        self.evicted: list[int] = []
        self.released: dict[int, None] = {}
        self.cached: dict[int, str] = {}
        self.uncached: dict[int, None] = {}
        self._first_changed: dict[int, int] = {}

    def table_changed(self, request_id: int, index: int) -> None:
        """The block table of `request_id` differs from `index` on."""
        self._first_changed[request_id] = min(index, self._first_changed.get(request_id, index))

    def table_released(self, request_id: int) -> None:
        """`request_id` has no block table any more."""
        self._first_changed.pop(request_id, None)
        self.released[request_id] = None

    def block_cached(self, block_id: int, digest_head: str) -> None:
        """The block can be found by prefix from now on."""
        self.cached[block_id] = digest_head

    def block_uncached(self, block_id: int) -> None:
        """The block can no longer be found by prefix."""
        self.cached.pop(block_id, None)
        self.uncached[block_id] = None

    def take(self, tables: Mapping[int, list[int]]) -> Changes:
        """What happened since the last call; `tables` are the block tables as they are now."""
        changes = Changes(
            tuple(self.new),
            tuple(self.copies),
            tuple(self.evicted),
            BlockChanges(
                tables={
                    request_id: (index, tuple(tables[request_id][index:]))
                    for request_id, index in self._first_changed.items()
                },
                released=tuple(self.released),
                cached=tuple(self.cached.items()),
                uncached=tuple(self.uncached),
            ),
        )
        self.__init__()  # type: ignore[misc]
        return changes
