"""The last few thousand step records, and the block map just before the oldest of them.

Owns the history that a page can scrub through. Written by the engine thread, read by any thread.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from engine.telemetry.record import EventKind, StepRecord


@dataclass
class BlockMap:
    """Who owns which block and what is cached, as told by block changes alone.

    `tables`: request id → its block table. `computed`: request id → tokens stored. `cached`: block id → head of its
    prefix digest. `num_blocks` and `block_size` are the pool's. `requests`: what the `arrived` event told of each
    request that has not finished, and its answer's length so far. `prefix_caching`: whether equal beginnings are shared
    (None: not known), because a record tells it only when it changes.
    """

    step: int = 0
    num_blocks: int = 0
    block_size: int = 1
    tables: dict[int, list[int]] = field(default_factory=dict)
    computed: dict[int, int] = field(default_factory=dict)
    cached: dict[int, str] = field(default_factory=dict)
    requests: dict[int, dict[str, Any]] = field(default_factory=dict)
    prefix_caching: bool | None = None

    def apply(self, record: StepRecord) -> None:
        """Move the map from just before `record` to just after it."""
        if (record.num_blocks, record.block_size) != (self.num_blocks, self.block_size):
            self.tables.clear()
            self.cached.clear()
            self.num_blocks, self.block_size = record.num_blocks, record.block_size
        self.step = record.step
        for event in record.events:
            if event.kind is EventKind.ARRIVED and event.request_id is not None:
                self.requests[event.request_id] = dict(event.details) | {"num_output_tokens": 0}
            elif event.kind in (EventKind.SETTINGS, EventKind.DRAINING):
                self.prefix_caching = event.details.get("prefix_caching", self.prefix_caching)
        for request_id, length in record.outputs.items():
            if request_id in self.requests:
                self.requests[request_id]["num_output_tokens"] = length
        for request_id in record.blocks.released:
            self.tables.pop(request_id, None)
            self.computed.pop(request_id, None)
        for request_id, (start, ids) in record.blocks.tables.items():
            table = self.tables.setdefault(request_id, [])
            table[start:] = ids
        for request_id, computed in record.computed.items():
            if request_id in self.tables:
                self.computed[request_id] = computed
        for block in record.blocks.uncached:
            self.cached.pop(block, None)
        self.cached.update(record.blocks.cached)
        for event in record.events:
            if event.kind is EventKind.FINISHED and event.request_id is not None:
                self.requests.pop(event.request_id, None)

    def copy(self) -> BlockMap:
        """An independent copy."""
        return BlockMap(
            self.step,
            self.num_blocks,
            self.block_size,
            {rid: list(table) for rid, table in self.tables.items()},
            dict(self.computed),
            dict(self.cached),
            {rid: dict(request) for rid, request in self.requests.items()},
            self.prefix_caching,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "step": self.step,
            "num_blocks": self.num_blocks,
            "block_size": self.block_size,
            "block_tables": self.tables,
            "computed": self.computed,
            "cached": sorted(self.cached.items()),
            "requests": self.requests,
            "prefix_caching": self.prefix_caching,
        }


@dataclass(frozen=True)
class Steps:
    """An answer to "what is new": the records, and `base` when the reader has to start over from it."""

    epoch: str
    oldest: int
    newest: int
    base: BlockMap | None
    records: tuple[StepRecord, ...]


class RecordRing:
    """A bounded history of step records with the block map at its beginning.

    `epoch` names this history: a reader whose epoch differs has been talking to another server's life. `base` is the
    block map before the first record, where that is not an empty one (a trace that begins in the middle).
    """

    def __init__(self, epoch: str, capacity: int = 4096, base: BlockMap | None = None) -> None:
        self.epoch = epoch
        self._records: deque[StepRecord] = deque()
        self._capacity = capacity
        self._base = base.copy() if base is not None else BlockMap()
        self._lock = threading.Lock()

    def append(self, record: StepRecord) -> None:
        """Add the newest record; the oldest one moves into the base when the ring is full."""
        with self._lock:
            if not self._records and not self._base.step:
                self._base.num_blocks, self._base.block_size = record.num_blocks, record.block_size
                self._base.step = record.step - 1
            self._records.append(record)
            if len(self._records) > self._capacity:
                self._base.apply(self._records.popleft())

    @property
    def last(self) -> StepRecord | None:
        """The newest record."""
        return self._records[-1] if self._records else None

    @property
    def newest(self) -> int:
        """Step number of the newest record, 0 when there is none."""
        return self._records[-1].step if self._records else 0

    def since(self, step: int | None = None, epoch: str | None = None, limit: int | None = None) -> Steps:
        """Records newer than `step`, oldest first, at most `limit` of them.

        A reader starts over, and gets the base just before the first record it is sent, when it names no step, a
        step before the oldest kept or after the newest, or another epoch. A reader at exactly the step before the
        oldest also gets the base: it may be reading for the first time.
        """
        with self._lock:
            records = list(self._records)
            newest = records[-1].step if records else self._base.step
            oldest = records[0].step if records else newest + 1
            over = step is None or step < oldest or step > newest or (epoch is not None and epoch != self.epoch)
            start = oldest - 1 if over or step is None else step
            base = self._base.copy() if over else None
        # Steps are numbered without gaps, so the position of a record follows from its number.
        wanted = records[start - oldest + 1 :] if records else []
        return Steps(self.epoch, oldest, newest, base, tuple(wanted[:limit] if limit is not None else wanted))
