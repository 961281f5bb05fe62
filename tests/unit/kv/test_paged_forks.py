"""Forks and copy-on-write in the paged layout, and counts that stay exact through them."""

from __future__ import annotations

import itertools

import pytest

from engine.kv.layout import Admission, Shortage
from engine.kv.paged import PagedLayout
from engine.scheduling.plan import BlockCopy
from tests.unit.kv.paged_steps import PROMPT, a_request, admit, blocks, decode, fork, run, write

# -- forks and copy-on-write ------------------------------------------------------------------------------------


def test_a_fork_shares_the_last_partly_filled_block_too() -> None:
    kv = PagedLayout(40, 4, prefix_caching=False)
    parent = run(kv, PROMPT[:18])
    child = fork(kv, parent)
    assert child.num_computed_tokens == 17
    assert blocks(kv, child) == blocks(kv, parent)
    assert (kv.num_active_blocks, kv.num_stored_tokens) == (5, 18)
    kv.check()


def test_whoever_writes_first_into_a_shared_block_copies_it() -> None:
    kv = PagedLayout(40, 4)
    parent = run(kv, PROMPT[:18])
    child = fork(kv, parent)
    kv.take_changes()
    write(kv, child)
    changes = kv.take_changes()
    src, dst = blocks(kv, parent)[4], blocks(kv, child)[4]
    assert changes.copies == (BlockCopy(src, dst, 1),)
    assert dst not in changes.new_block_ids
    assert changes.blocks.tables == {child.request_id: (4, (dst,))}
    decode(kv, parent, 1)  # alone in its block again: writes in place
    assert kv.take_changes().copies == ()
    assert blocks(kv, parent)[4] == src


def test_the_parent_copies_when_it_writes_first() -> None:
    kv = PagedLayout(40, 4)
    parent = run(kv, PROMPT[:18])
    child = fork(kv, parent)
    kv.take_changes()
    shared = blocks(kv, parent)[4]
    decode(kv, parent, 1)
    assert kv.take_changes().copies == (BlockCopy(shared, blocks(kv, parent)[4], 2),)
    write(kv, child)
    assert kv.take_changes().copies == ()
    assert blocks(kv, child)[4] == shared


def test_what_is_stored_is_counted_exactly_after_a_fork() -> None:
    """The parent has written further in the shared block than the child will ever read."""
    kv = PagedLayout(40, 8)
    parent = run(kv, PROMPT[:9])
    decode(kv, parent, 1, 2, 3)
    child = fork(kv, parent)
    assert (child.num_computed_tokens, kv.num_stored_tokens) == (8, 12)
    second = fork(kv, parent)
    kv.release(second.request_id)
    kv.check()
    kv.release(parent.request_id)
    assert kv.num_stored_tokens == 8
    write(kv, child)
    assert kv.num_stored_tokens == 9

    parent = run(kv, PROMPT[:11])
    decode(kv, parent, 1, 2, 3)
    child = fork(kv, parent)
    before = kv.num_stored_tokens
    decode(kv, parent, 4)  # leaves the shared block to the child, with 14 - 8 of its own tokens in the copy
    assert kv.num_stored_tokens == before + 7 - 6 + 2
    write(kv, child)
    assert kv.num_stored_tokens == before + 7 - 6 + 3


def test_a_full_shared_block_that_is_to_change_is_forgotten_first() -> None:
    """The parent fills and publishes the block, the child forks it, the parent leaves: the child writes in place."""
    kv = PagedLayout(40, 4)
    parent = run(kv, PROMPT[:6])
    decode(kv, parent, 1, 2)
    published = blocks(kv, parent)[1]
    child = fork(kv, parent)
    assert child.num_computed_tokens == 5
    kv.release(parent.request_id)
    kv.take_changes()
    write(kv, child)
    changes = kv.take_changes()
    assert changes.copies == ()
    assert blocks(kv, child)[1] == published
    assert changes.blocks.uncached == (published,)
    assert admit(kv, a_request((*PROMPT[:6], 1, 2, 3))).num_cached_tokens == 4
    decode(kv, child, 7, 8)
    assert admit(kv, a_request((*PROMPT[:6], 7, 8, 9))).num_cached_tokens == 8


def test_a_prompt_that_ends_with_its_block_needs_no_copy() -> None:
    kv = PagedLayout(40, 4)
    parent = run(kv, PROMPT[:17])
    child = fork(kv, parent)
    assert blocks(kv, child) == blocks(kv, parent)[:4]
    kv.take_changes()
    write(kv, child)
    assert kv.take_changes().copies == ()
    assert len(set(blocks(kv, child)) - set(blocks(kv, parent))) == 1


def test_there_is_nothing_to_fork_before_the_prompt_is_there() -> None:
    kv = PagedLayout(40, 4)
    parent = a_request(PROMPT[:18])
    child = a_request(PROMPT[:18])
    assert kv.fork(child, parent, 0) is None
    admit(kv, parent)
    write(kv, parent, 16)
    assert kv.fork(child, parent, 0) is None
    write(kv, parent, 1)
    assert isinstance(kv.fork(child, parent, 0), Admission)


def test_a_fork_that_finds_no_block_for_its_copy_waits() -> None:
    kv = PagedLayout(6, 4)
    parent = run(kv, PROMPT[:18])
    child = a_request(PROMPT[:18])
    assert kv.fork(child, parent, 1) == Shortage(1, 0, free_blocks=1, promised_blocks=1)
    assert not kv.holds(child.request_id)
    child = fork(kv, parent)
    assert kv.extend(child, 1) is None
    assert kv.extend(parent, 1) is None
    kv.check()


def test_a_family_gives_every_block_back_once() -> None:
    """Four children of one 20-token prompt, 40 tokens each, in every order of leaving."""
    for order in itertools.permutations(range(4)):
        kv = PagedLayout(70, 16)
        parent = run(kv)
        family = [parent, *(fork(kv, parent) for _ in range(3))]
        for step in range(40):
            for member in family:
                if not (step == 0 and member is not parent):
                    member.output_token_ids.append(order[0] * 1000 + step)
                write(kv, member)
        for position in order:
            kv.release(family[position].request_id)
            kv.check()
        assert kv.num_free_blocks + kv.num_cached_blocks == 70
        assert kv.num_stored_tokens == 0
        kv.forget_prefixes()
        assert kv.num_free_blocks == 70
        kv.check()


# -- the checks -------------------------------------------------------------------------------------------------


def test_check_finds_drift() -> None:
    kv = PagedLayout(40, 4)
    request = run(kv)
    kv._fill[blocks(kv, request)[0]] = 3
    with pytest.raises(AssertionError, match="drifted"):
        kv.check()
    kv = PagedLayout(40, 4)
    request = run(kv)
    kv._holdings[request.request_id].table.pop()
    with pytest.raises(AssertionError):
        kv.check()
    kv = PagedLayout(40, 4)
    request = run(kv, PROMPT[:6])
    kv._index.publish(blocks(kv, request)[1], b"too early", None, (1,))
    with pytest.raises(AssertionError, match="findable"):
        kv.check()
