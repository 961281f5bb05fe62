"""The physical blocks: which are free, which are cached, which are active and how many tables hold each.

Owns the reference counts and the order of eviction. Never knows requests, tokens or tensors.
"""

from __future__ import annotations

from collections import OrderedDict, deque


class BlockPool:
    """`num_blocks` blocks, each exactly one of free, cached (findable by prefix, no owner) or active (owned).

    Every operation costs the same whatever the pool's size. Cached blocks are taken back least recently used first;
    since a table gives its blocks back last one first, a prefix outlives what was built on it.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._refcounts: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing anyone could use."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks without an owner that a prefix can still bring back to life."""
        return len(self._cached)

    @property
    def num_active(self) -> int:
        """Blocks that at least one block table holds."""
        return len(self._refcounts)

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out: free ones, and cached ones by evicting them."""
        return len(self._free) + len(self._cached)

    def refcount(self, block_id: int) -> int:
        """How many block tables hold this block."""
        return self._refcounts.get(block_id, 0)

    def is_cached(self, block_id: int) -> bool:
        """Whether the block has no owner and can be brought back to life."""
        return block_id in self._cached

    def take(self) -> tuple[int, bool]:
        """Hand out one block; True means that it was cached until now. Raises IndexError when none is available."""
        if self._free:
            block_id, was_cached = self._free.popleft(), False
        elif self._cached:
            (block_id, _), was_cached = self._cached.popitem(last=False), True
        else:
            raise IndexError("no block is available; ask num_available first")
        self._refcounts[block_id] = 1
        return block_id, was_cached

    def share(self, block_id: int) -> bool:
        """One more table holds this block, active or cached; True means that it was cached until now."""
        was_cached = block_id in self._cached
        if was_cached:
            del self._cached[block_id]
            self._refcounts[block_id] = 1
        else:
            self._refcounts[block_id] += 1
        return was_cached

    def give_back(self, block_id: int, keep: bool) -> bool:
        """One table less holds this block; the last leaves it cached if `keep`, else free. True: it was the last."""
        count = self._refcounts[block_id] - 1
        if count:
            self._refcounts[block_id] = count
            return False
        del self._refcounts[block_id]
        if keep:
            self._cached[block_id] = None
        else:
            self._free.append(block_id)
        return True

    def drop_cached(self, block_id: int) -> None:
        """A cached block becomes free, since it can no longer be found."""
        del self._cached[block_id]
        self._free.append(block_id)

    def check(self, tables: list[list[int]]) -> None:
        """Assert the invariants against the block tables that exist. Costs time in the pool's size: for tests."""
        counts: dict[int, int] = {}
        for table in tables:
            assert len(set(table)) == len(table), f"a block stands twice in one table: {table}"
            for block_id in table:
                counts[block_id] = counts.get(block_id, 0) + 1
        assert counts == self._refcounts, f"reference counts {self._refcounts} differ from the tables' {counts}"
        free, cached, active = set(self._free), set(self._cached), set(self._refcounts)
        assert len(free) == len(self._free), "a block is in the free list twice"
        assert len(free) + len(cached) + len(active) == len(free | cached | active), "a block is in two states"
        assert free | cached | active == set(range(self.num_blocks)), "a block is in no state"
