"""The prefix index: found only when tokens and the whole prefix are equal, whatever the digests are."""

from __future__ import annotations

import pytest

from engine.kv import prefix_index
from engine.kv.prefix_index import PrefixEntry, PrefixIndex, block_digest


def published(index: PrefixIndex, block_id: int, parent: PrefixEntry | None, *tokens: int) -> PrefixEntry:
    entry = index.publish(
        block_id, block_digest(parent.digest if parent else index.root_digest, tokens), parent, tokens
    )
    assert entry is not None
    return entry


def found(index: PrefixIndex, parent: PrefixEntry | None, *tokens: int) -> PrefixEntry | None:
    return index.find(block_digest(parent.digest if parent else index.root_digest, tokens), parent, tokens)


def test_the_digest_is_128_bits_and_depends_on_every_token_and_the_whole_prefix() -> None:
    seen = {
        block_digest(b"", (1, 2)),
        block_digest(b"", (2, 1)),
        block_digest(b"", (1, 2, 0)),
        block_digest(b"", (12,)),
        block_digest(block_digest(b"", (1, 2)), (1, 2)),
        block_digest(block_digest(b"", (2, 1)), (1, 2)),
    }
    assert len(seen) == 6
    assert {len(digest) for digest in seen} == {16}
    assert block_digest(b"x" * 16, (5, 6)) == block_digest(b"x" * 16, [5, 6])


def test_a_block_is_found_after_its_own_prefix_only() -> None:
    index = PrefixIndex()
    a, b = published(index, 0, None, 1, 2), published(index, 1, None, 3, 4)
    tail = published(index, 2, a, 5, 6)
    assert found(index, None, 1, 2) is a
    assert found(index, a, 5, 6) is tail
    assert found(index, b, 5, 6) is None
    assert found(index, None, 5, 6) is None
    assert found(index, a, 6, 5) is None


def test_nobody_can_try_out_what_a_prompt_was() -> None:
    one, other = PrefixIndex(), PrefixIndex()
    heads = {published(index, 0, None, 1, 2).digest for index in (one, other)}
    assert len(heads) == 2
    assert block_digest(b"", (1, 2)) not in heads


@pytest.mark.parametrize("digest", [b"", b"constant"])
def test_a_digest_alone_proves_nothing(digest: bytes) -> None:
    index = PrefixIndex()
    a = index.publish(0, digest, None, (1, 2))
    assert a is not None
    assert index.find(digest, None, (1, 2)) is a
    assert index.find(digest, None, (1, 3)) is None
    assert index.find(digest, a, (1, 2)) is None
    assert index.publish(1, digest, None, (1, 3)) is None  # a collision: that block stays private
    assert 1 not in index
    assert len(index) == 1


def test_a_second_block_with_the_same_prefix_is_not_published() -> None:
    index = PrefixIndex()
    first = published(index, 0, None, 1, 2)
    assert published(index, 7, None, 1, 2) is first
    assert 7 not in index
    assert index.block_ids() == [0]


def test_a_forgotten_block_is_found_no_more_and_may_come_again() -> None:
    index = PrefixIndex()
    published(index, 0, None, 1, 2)
    index.forget(0)
    assert found(index, None, 1, 2) is None
    assert len(index) == 0
    again = published(index, 5, None, 1, 2)
    assert found(index, None, 1, 2) is again


def test_what_was_built_on_an_evicted_block_is_found_again_once_that_was_computed_anew() -> None:
    index = PrefixIndex()
    root = published(index, 0, None, 1, 2)
    middle = published(index, 1, root, 3, 4)
    leaf = published(index, 2, middle, 5, 6)
    index.forget(0)
    index.forget(1)
    assert found(index, None, 1, 2) is None
    new_root = published(index, 8, None, 1, 2)
    new_middle = published(index, 9, new_root, 3, 4)
    assert found(index, new_middle, 5, 6) is leaf
    assert leaf.parent is new_middle  # compared once, the same object from now on


def test_a_re_created_parent_with_other_tokens_is_another_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """With colliding digests, equal tokens after different prefixes must still be told apart."""
    monkeypatch.setattr(prefix_index, "block_digest", lambda parent, tokens: b"%d" % sum(tokens))
    index = PrefixIndex()
    digest = prefix_index.block_digest
    root = index.publish(0, digest(b"", (1, 4)), None, (1, 4))
    leaf = index.publish(1, digest(b"", (7, 7)), root, (7, 7))
    assert root is not None
    index.forget(0)
    other = index.publish(2, digest(b"", (2, 3)), None, (2, 3))
    assert other is not None
    assert index.find(digest(b"", (7, 7)), other, (7, 7)) is None
    assert leaf is not None
    assert leaf.parent is root
