"""What the scheduler asks of a KV layout, and what it is told.

Two layouts stand behind this: `paged` and `contiguous`. Both own the block tables; neither knows a tensor, a policy
or who else waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.scheduling.plan import BlockCopy
from engine.scheduling.request import Request
from engine.telemetry.record import BlockChanges


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why blocks could not be had. `is_fragmented`: enough are free, but not in one run; then `available_blocks` is
    the longest run. Else it is `free_blocks` + `cached_blocks` - `promised_blocks` - `own_prefix_blocks`, or 0."""

    needed_blocks: int
    available_blocks: int
    free_blocks: int
    cached_blocks: int = 0
    promised_blocks: int = 0
    own_prefix_blocks: int = 0
    is_fragmented: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """What a request found when it got its block table."""

    num_cached_tokens: int
    """Leading tokens whose keys and values are there already."""
    num_shared_blocks: int


@dataclass(slots=True)
class Changes:
    """What has happened to blocks since the last time somebody asked."""

    new_block_ids: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    evicted: tuple[int, ...] = ()
    blocks: BlockChanges = field(default_factory=BlockChanges)


class KVLayout(Protocol):
    """Block tables of the requests that hold keys and values."""

    name: str
    can_share: bool
    num_blocks: int
    block_size: int

    @property
    def num_free_blocks(self) -> int:
        """Free blocks, cached ones not counted."""

    @property
    def num_cached_blocks(self) -> int:
        """Blocks kept for their prefix, without an owner."""

    @property
    def num_active_blocks(self) -> int:
        """Blocks in at least one block table."""

    @property
    def num_available_blocks(self) -> int:
        """Blocks that could be handed out now."""

    @property
    def num_stored_tokens(self) -> int:
        """Tokens stored in active blocks, a shared block's counted once."""

    @property
    def external_fragmentation(self) -> float:
        """1 - longest free run / free blocks; 0 where blocks can be anywhere."""

    def admit(self, request: Request, headroom: int) -> Admission | Shortage:
        """Give `request` a block table, if its tokens so far and `headroom` further blocks could be had now."""

    def fork(self, request: Request, parent: Request, headroom: int) -> Admission | Shortage | None:
        """Give `request` a table that shares its parent's prompt; None where this layout or state cannot."""

    def num_missing_blocks(self, request: Request) -> int:
        """Blocks that a request with a table still needs to hold its tokens so far and the next one."""

    def extend(self, request: Request, num_tokens: int) -> Shortage | None:
        """Make room for the next `num_tokens` tokens, all or nothing; copies a shared block that would be written."""

    def written(self, request: Request) -> None:
        """`request.num_computed_tokens` tokens are stored now: full blocks may be found by others from here on."""

    def release(self, request_id: int) -> int:
        """Take the block table away; returns how many blocks that made available."""

    def forget_prefixes(self) -> None:
        """Nothing can be found by prefix any more; cached blocks become free."""

    def table(self, request_id: int) -> list[int]:
        """The block table: logical block number → block id. Not to be changed by the caller."""

    def holds(self, request_id: int) -> bool:
        """Whether the request has a block table."""

    def take_changes(self) -> Changes:
        """Everything that happened since the last call."""

    def check(self) -> None:
        """Assert the layout's invariants; costs time in the pool's size."""
