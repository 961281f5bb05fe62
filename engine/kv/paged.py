"""The paged layout: blocks one at a time, anywhere, shared between requests with the same prefix.

Owns block tables, prefix sharing and copy-on-write. Never knows policies, other layouts or tensors.
Paging is vLLM's (Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
SOSP 2023); copy-on-write is the operating system's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.kv import prefix_index
from engine.kv.block_pool import BlockPool
from engine.kv.changes import ChangeLog
from engine.kv.layout import Admission, Changes, Shortage
from engine.kv.prefix_index import PrefixEntry, PrefixIndex
from engine.scheduling.plan import BlockCopy
from engine.scheduling.request import Request


@dataclass(slots=True)
class _Holding:
    """What one request holds: its table, and the published entries of its leading full blocks."""

    table: list[int] = field(default_factory=list)
    chain: list[PrefixEntry] = field(default_factory=list)
    num_stored: int = 0
    chain_ended: bool = False
    """A digest collision: nothing after it can be published."""


class PagedLayout:
    """Block tables over a `BlockPool`. Costs nothing that grows with the pool."""

    name = "paged"
    can_share = True

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._prefix_caching = prefix_caching
        self._pool = BlockPool(num_blocks)
        self._index = PrefixIndex()
        self._holdings: dict[int, _Holding] = {}
        self._fill: dict[int, int] = {}  # active block → tokens stored in it
        self._forked: set[int] = set()  # active blocks that were shared while partly filled: owners' fills may differ
        self._num_stored_tokens = 0
        self._log = ChangeLog()

    num_free_blocks = property(lambda self: self._pool.num_free)
    num_cached_blocks = property(lambda self: self._pool.num_cached)
    num_active_blocks = property(lambda self: self._pool.num_active)
    num_available_blocks = property(lambda self: self._pool.num_available)
    num_stored_tokens = property(lambda self: self._num_stored_tokens)

    @property
    def external_fragmentation(self) -> float:
        """Zero by construction: any free block will do."""
        return 0.0

    def set_prefix_caching(self, enabled: bool) -> None:
        """Switch sharing on or off; off forgets every prefix at once (owners keep what they share)."""
        self._prefix_caching = enabled
        if not enabled:
            self.forget_prefixes()

    def forget_prefixes(self) -> None:
        """Nothing can be found by prefix any more; who holds blocks keeps them, but publishes no more of them."""
        for block_id in self._index.block_ids():
            self._forget(block_id)
        for holding in self._holdings.values():
            holding.chain.clear()
            holding.chain_ended = True

    def admit(self, request: Request, headroom: int) -> Admission | Shortage:
        """A table that begins with the blocks found by prefix. Blocks for the rest come as `extend` needs them;
        they must be there now, and `headroom` more, or a request would come in only to be preempted."""
        chain = self._find_prefix(request)
        needed = self._num_blocks_for(request.num_tokens + 1) - len(chain)
        revived = sum(self._pool.is_cached(entry.block_id) for entry in chain)
        if needed > self._pool.num_available - revived - headroom:
            return self._shortage(needed, headroom, revived)
        holding = self._holdings[request.request_id] = _Holding(chain=chain)
        for entry in chain:
            self._hold(holding, entry.block_id)
        holding.num_stored = len(chain) * self.block_size
        self._log.table_changed(request.request_id, 0)
        return Admission(holding.num_stored, len(chain))

    def fork(self, request: Request, parent: Request, headroom: int) -> Admission | Shortage | None:
        """Share all of the parent's blocks that hold the prompt but its last token, the partly filled one included.

        The last prompt token is computed again, for its logits; writing it copies the shared block. Returns None
        when the parent has no table or not yet the whole prompt in it.
        """
        theirs = self._holdings.get(parent.request_id)
        num_shared_tokens = request.num_prompt_tokens - 1
        if theirs is None or theirs.num_stored < num_shared_tokens:
            return None
        num_shared = self._num_blocks_for(num_shared_tokens)
        needed = self._num_blocks_for(request.num_tokens + 1) - num_shared_tokens // self.block_size
        if needed > self._pool.num_available - headroom:
            return self._shortage(needed, headroom)
        num_full = num_shared_tokens // self.block_size
        holding = self._holdings[request.request_id] = _Holding(
            chain=theirs.chain[:num_full], num_stored=num_shared_tokens, chain_ended=len(theirs.chain) < num_full
        )
        for block_id in theirs.table[:num_shared]:
            self._hold(holding, block_id)
        if num_shared > num_full:
            self._forked.add(holding.table[-1])
        self._log.table_changed(request.request_id, 0)
        return Admission(num_shared_tokens, num_shared)

    def num_missing_blocks(self, request: Request) -> int:
        """Blocks still to come until the tokens so far and the next one have their place."""
        return self._num_blocks_for(request.num_tokens + 1) - len(self._holdings[request.request_id].table)

    def extend(self, request: Request, num_tokens: int) -> Shortage | None:
        """Append blocks until the table covers `num_tokens` more tokens; a shared block is copied before a write."""
        holding = self._holdings[request.request_id]
        table = holding.table
        start = request.num_computed_tokens
        first_written = start // self.block_size
        copies = num_tokens > 0 and first_written < len(table) and self._pool.refcount(table[first_written]) > 1
        needed = self._num_blocks_for(start + num_tokens) - len(table) + copies
        if needed > self._pool.num_available:
            return self._shortage(needed)
        if copies:
            self._copy_on_write(request.request_id, holding, first_written, start % self.block_size)
        elif num_tokens > 0 and first_written < len(table) and table[first_written] in self._index:
            # It was forked, and its other owner filled and published it before leaving: what it says is to change.
            self._forget(table[first_written])
        if needed > copies:
            self._log.table_changed(request.request_id, len(table))
        for _ in range(needed - copies):
            block_id = self._take()
            self._log.new[block_id] = None
            table.append(block_id)
        return None

    def written(self, request: Request) -> None:
        """Count what is stored now and publish the blocks that became full."""
        holding = self._holdings[request.request_id]
        old, new = holding.num_stored, request.num_computed_tokens
        for index in range(old // self.block_size, self._num_blocks_for(new) if new > old else 0):
            self._set_fill(holding.table[index], self._fill_at(index, new))
        holding.num_stored = new
        if self._prefix_caching and not holding.chain_ended:
            for index in range(len(holding.chain), new // self.block_size):
                if not self._publish(request, holding, index):
                    break

    def release(self, request_id: int) -> int:
        """Give all blocks back, last one first, so that eviction takes leaves before what they stand on."""
        holding = self._holdings.pop(request_id)
        before = self._pool.num_available
        for index in range(len(holding.table) - 1, -1, -1):
            self._let_go(holding.table[index], index)
        self._log.table_released(request_id)
        return self._pool.num_available - before

    def table(self, request_id: int) -> list[int]:
        """The block table of a request that holds one."""
        return self._holdings[request_id].table

    def holds(self, request_id: int) -> bool:
        """Whether the request has a block table."""
        return request_id in self._holdings

    def take_changes(self) -> Changes:
        """What happened since the last call."""
        return self._log.take({request_id: holding.table for request_id, holding in self._holdings.items()})

    def check(self) -> None:
        """Assert what must hold between two steps."""
        self._pool.check([holding.table for holding in self._holdings.values()])
        stored: dict[int, int] = {}
        for holding in self._holdings.values():
            assert len(holding.table) >= self._num_blocks_for(holding.num_stored), "tokens stored beyond the table"
            for index, block_id in enumerate(holding.table):
                stored[block_id] = max(self._fill_at(index, holding.num_stored), stored.get(block_id, 0))
        filled = {block_id: fill for block_id, fill in stored.items() if fill}
        assert filled == {block_id: fill for block_id, fill in self._fill.items() if fill}, "a block's fill has drifted"
        assert self._num_stored_tokens == sum(filled.values()), "the count of stored tokens has drifted"
        assert self._forked <= set(stored), "a block without an owner still counts as forked"
        for block_id in self._index.block_ids():
            is_full = self._fill.get(block_id, self.block_size) == self.block_size
            assert self._pool.is_cached(block_id) or (self._pool.refcount(block_id) and is_full), (
                f"block {block_id} is findable but free or not full"
            )

    def _shortage(self, needed: int, promised: int = 0, own_prefix: int = 0) -> Shortage:
        available = max(0, self._pool.num_available - promised - own_prefix)
        return Shortage(needed, available, self._pool.num_free, self._pool.num_cached, promised, own_prefix)

    def _num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _fill_at(self, index: int, num_tokens: int) -> int:
        """How many of a table's `num_tokens` tokens are in its block `index`."""
        return max(0, min(self.block_size, num_tokens - index * self.block_size))

    def _block_tokens(self, request: Request, index: int) -> tuple[int, ...]:
        return request.tokens(index * self.block_size, (index + 1) * self.block_size)

    def _digest(self, parent: PrefixEntry | None, token_ids: tuple[int, ...]) -> bytes:
        return prefix_index.block_digest(parent.digest if parent else self._index.root_digest, token_ids)

    def _find_prefix(self, request: Request) -> list[PrefixEntry]:
        """The published entries of the longest known prefix that leaves at least one token to compute."""
        chain: list[PrefixEntry] = []
        if not self._prefix_caching:
            return chain
        parent: PrefixEntry | None = None
        for index in range((request.num_tokens - 1) // self.block_size):
            token_ids = self._block_tokens(request, index)
            digest = self._digest(parent, token_ids)
            parent = self._index.find(digest, parent, token_ids)
            if parent is None:
                break
            chain.append(parent)
        return chain

    def _publish(self, request: Request, holding: _Holding, index: int) -> bool:
        """Make the full block at `index` of the table findable; False ends the chain (a digest collision)."""
        parent = holding.chain[-1] if holding.chain else None
        token_ids = self._block_tokens(request, index)
        digest = self._digest(parent, token_ids)
        entry = self._index.publish(holding.table[index], digest, parent, token_ids)
        if entry is None:
            holding.chain_ended = True
            return False
        if entry.block_id == holding.table[index]:
            self._log.block_cached(entry.block_id, digest.hex()[:8])
        holding.chain.append(entry)
        return True

    def _hold(self, holding: _Holding, block_id: int) -> None:
        if self._pool.share(block_id):
            self._set_fill(block_id, self.block_size)  # only full blocks are ever cached
        holding.table.append(block_id)

    def _let_go(self, block_id: int, index: int) -> None:
        """One owner less; the block stands at `index` of all its tables. The owner must be gone from there."""
        if self._pool.give_back(block_id, keep=block_id in self._index):
            self._num_stored_tokens -= self._fill.pop(block_id, 0)
            self._forked.discard(block_id)
        elif block_id in self._forked:  # whoever has left may have been the one with the most in it
            owners = [h for h in self._holdings.values() if index < len(h.table) and h.table[index] == block_id]
            self._set_fill(block_id, max(self._fill_at(index, owner.num_stored) for owner in owners))

    def _take(self) -> int:
        block_id, was_cached = self._pool.take()
        if was_cached:
            self._index.forget(block_id)
            self._log.block_uncached(block_id)
            self._log.evicted.append(block_id)
        return block_id

    def _copy_on_write(self, request_id: int, holding: _Holding, index: int, num_tokens: int) -> None:
        src, dst = holding.table[index], self._take()
        holding.table[index] = dst
        self._let_go(src, index)
        self._set_fill(dst, num_tokens)
        self._log.copies.append(BlockCopy(src, dst, num_tokens))
        self._log.table_changed(request_id, index)

    def _set_fill(self, block_id: int, fill: int) -> None:
        self._num_stored_tokens += fill - self._fill.get(block_id, 0)
        self._fill[block_id] = fill

    def _forget(self, block_id: int) -> None:
        self._index.forget(block_id)
        self._log.block_uncached(block_id)
        if self._pool.is_cached(block_id):
            self._pool.drop_cached(block_id)
