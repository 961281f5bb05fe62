"""Which written block holds which prefix: the lookup behind prefix sharing.

Owns the map from a prefix's digest to the block that ends it. Never knows who owns a block or whether it is in use.
The idea is vLLM's automatic prefix caching: a full block is named by its own tokens and by everything before them.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Sequence
from dataclasses import dataclass


def block_digest(parent_digest: bytes, token_ids: Sequence[int]) -> bytes:
    """128-bit digest of a block's tokens and, through its parent's digest, of its whole prefix."""
    return hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=16, key=parent_digest).digest()


@dataclass(slots=True, eq=False)
class PrefixEntry:
    """One findable block: the tokens in it and the entry of the block before it (None for the first)."""

    block_id: int
    digest: bytes
    token_ids: tuple[int, ...]
    parent: PrefixEntry | None


class PrefixIndex:
    """Entries by digest. A digest only suggests an entry: tokens and the whole chain of parents are compared, so
    that two prefixes with the same digest are never taken for each other. (Almost always the parents are one and the
    same object, and nothing is left to compare.)"""

    def __init__(self) -> None:
        self.root_digest = secrets.token_bytes(16)
        """The parent digest of first blocks, a secret of this index: digests are shown, and nobody who sees one is to
        find out by trying what a prompt was."""
        self._by_digest: dict[bytes, PrefixEntry] = {}
        self._by_block: dict[int, PrefixEntry] = {}

    def __len__(self) -> int:
        return len(self._by_block)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._by_block

    def find(self, digest: bytes, parent: PrefixEntry | None, token_ids: tuple[int, ...]) -> PrefixEntry | None:
        """The entry for exactly these tokens after exactly that parent, or None."""
        entry = self._by_digest.get(digest)
        if entry is None or entry.token_ids != token_ids or not _is_same_prefix(entry.parent, parent):
            return None
        entry.parent = parent  # the parent it had may have been evicted, and this one computed anew since
        return entry

    def publish(
        self, block_id: int, digest: bytes, parent: PrefixEntry | None, token_ids: tuple[int, ...]
    ) -> PrefixEntry | None:
        """Make a written, full block findable, and return its entry.

        Returns the entry that is there already when another block holds the same prefix, and None when the digest
        is taken by a different prefix (a collision: the block stays private).
        """
        taken = self._by_digest.get(digest)
        if taken is not None:
            return self.find(digest, parent, token_ids)
        entry = PrefixEntry(block_id, digest, token_ids, parent)
        self._by_digest[digest] = self._by_block[block_id] = entry
        return entry

    def forget(self, block_id: int) -> None:
        """Make a block unfindable, before its contents are given up."""
        entry = self._by_block.pop(block_id)
        del self._by_digest[entry.digest]

    def block_ids(self) -> list[int]:
        """All findable blocks."""
        return list(self._by_block)


def _is_same_prefix(one: PrefixEntry | None, other: PrefixEntry | None) -> bool:
    while one is not other:
        if one is None or other is None or one.token_ids != other.token_ids:
            return False
        one, other = one.parent, other.parent
    return True
