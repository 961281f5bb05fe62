"""The contiguous layout: one unbroken run of blocks for prompt + max_tokens, reserved at admission, first fit.

The way of serving before paging, kept because its waste is worth seeing: what is reserved and not used (internal
fragmentation), and free blocks that no run can be made of (external fragmentation). Never shares a block.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kv.changes import ChangeLog
from engine.kv.layout import Admission, Changes, Shortage
from engine.scheduling.request import Request


@dataclass(slots=True)
class _Reservation:
    table: list[int]
    num_covered: int = 0
    """Leading blocks that were handed to the runner already, cleared."""
    num_stored: int = 0


class ContiguousLayout:
    """Runs of blocks, kept as a sorted list of free runs; costs grow with the number of runs, not of blocks."""

    name = "contiguous"
    can_share = False
    num_cached_blocks = 0

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free_runs: list[tuple[int, int]] = [(0, num_blocks)]  # (first block, length), by first block
        self._reservations: dict[int, _Reservation] = {}
        self._num_free = num_blocks
        self._num_stored_tokens = 0
        self._log = ChangeLog()

    num_free_blocks = property(lambda self: self._num_free)
    num_available_blocks = property(lambda self: self._num_free)
    num_active_blocks = property(lambda self: self.num_blocks - self._num_free)
    num_stored_tokens = property(lambda self: self._num_stored_tokens)

    @property
    def external_fragmentation(self) -> float:
        """1 - longest free run / free blocks."""
        return 1 - self._longest_run() / self._num_free if self._num_free else 0.0

    def admit(self, request: Request, headroom: int) -> Admission | Shortage:
        """Reserve the first run that holds prompt + max_tokens. `headroom` has no meaning: nothing ever grows."""
        needed = -(-request.max_total_tokens // self.block_size)
        for position, (first, length) in enumerate(self._free_runs):
            if length >= needed:
                rest = [(first + needed, length - needed)] if length > needed else []
                self._free_runs[position : position + 1] = rest
                self._num_free -= needed
                self._reservations[request.request_id] = _Reservation(list(range(first, first + needed)))
                self._log.table_changed(request.request_id, 0)
                return Admission(0, 0)
        is_fragmented = self._num_free >= needed
        available = self._longest_run() if is_fragmented else self._num_free
        return Shortage(needed, available, self._num_free, is_fragmented=is_fragmented)

    def fork(self, request: Request, parent: Request, headroom: int) -> None:
        """Runs are never shared."""
        return None

    def num_missing_blocks(self, request: Request) -> int:
        """None: all was reserved at admission."""
        return 0

    def extend(self, request: Request, num_tokens: int) -> None:
        """The room is reserved already; blocks that are reached for the first time are handed over to be cleared."""
        reservation = self._reservations[request.request_id]
        covered = -(-(request.num_computed_tokens + num_tokens) // self.block_size)
        for block_id in reservation.table[reservation.num_covered : covered]:
            self._log.new[block_id] = None
        reservation.num_covered = max(covered, reservation.num_covered)

    def written(self, request: Request) -> None:
        """Count what is stored now."""
        reservation = self._reservations[request.request_id]
        self._num_stored_tokens += request.num_computed_tokens - reservation.num_stored
        reservation.num_stored = request.num_computed_tokens

    def release(self, request_id: int) -> int:
        """Give the run back, and join it with the free runs beside it."""
        reservation = self._reservations.pop(request_id)
        self._num_stored_tokens -= reservation.num_stored
        self._num_free += len(reservation.table)
        runs = sorted([*self._free_runs, (reservation.table[0], len(reservation.table))])
        self._free_runs = []
        for first, length in runs:
            if self._free_runs and sum(self._free_runs[-1]) == first:
                self._free_runs[-1] = (self._free_runs[-1][0], self._free_runs[-1][1] + length)
            else:
                self._free_runs.append((first, length))
        self._log.table_released(request_id)
        return len(reservation.table)

    def forget_prefixes(self) -> None:
        """There is nothing to forget."""

    def table(self, request_id: int) -> list[int]:
        """The whole reserved run."""
        return self._reservations[request_id].table

    def holds(self, request_id: int) -> bool:
        """Whether the request has a run."""
        return request_id in self._reservations

    def take_changes(self) -> Changes:
        """What happened since the last call."""
        return self._log.take({request_id: r.table for request_id, r in self._reservations.items()})

    def check(self) -> None:
        """Assert what must hold between two steps."""
        owned = [block_id for r in self._reservations.values() for block_id in r.table]
        free = [block_id for first, length in self._free_runs for block_id in range(first, first + length)]
        assert len(free) == self._num_free, "the count of free blocks has drifted"
        assert sorted(owned + free) == list(range(self.num_blocks)), "a block is owned twice, or by nobody and not free"
        for (first, length), (after, _) in zip(self._free_runs, self._free_runs[1:], strict=False):
            assert first + length < after, "two free runs touch"
        assert self._num_stored_tokens == sum(r.num_stored for r in self._reservations.values())

    def _longest_run(self) -> int:
        return max((length for _, length in self._free_runs), default=0)
