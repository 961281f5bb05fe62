"""The paged layout: tables that grow block by block, and sharing by prefix."""

from __future__ import annotations

import pytest

from engine.kv import prefix_index
from engine.kv.layout import Admission, Shortage
from engine.kv.paged import PagedLayout
from tests.unit.kv.paged_steps import PROMPT, a_request, admit, blocks, decode, run, write

# -- tables -----------------------------------------------------------------------------------------------------


def test_a_table_grows_block_by_block() -> None:
    kv = PagedLayout(8, 4)
    request = a_request()
    assert admit(kv, request) == Admission(0, 0)
    assert kv.num_active_blocks == 0
    lengths = []
    for _ in range(20):
        write(kv, request, 1)
        lengths.append(len(blocks(kv, request)))
    assert lengths == [-(-n // 4) for n in range(1, 21)]
    assert (kv.num_active_blocks, kv.num_stored_tokens, kv.num_missing_blocks(request)) == (5, 20, 1)
    assert kv.release(request.request_id) == 5
    assert (kv.num_active_blocks, kv.num_stored_tokens, kv.num_available_blocks) == (0, 0, 8)


def test_new_blocks_are_to_be_cleared_and_told_once() -> None:
    kv = PagedLayout(8, 4)
    request = a_request()
    admit(kv, request)
    write(kv, request, 5)
    assert kv.take_changes().new_block_ids == (0, 1)
    write(kv, request, 3)
    assert kv.take_changes().new_block_ids == ()


def test_all_or_nothing_when_blocks_are_short() -> None:
    kv = PagedLayout(3, 4)
    request = a_request(PROMPT[:4])
    admit(kv, request)
    write(kv, request)
    request.output_token_ids = list(range(50))
    assert kv.extend(request, 12) == Shortage(3, 2, 2)
    assert blocks(kv, request) == [0]
    assert kv.extend(request, 8) is None


def test_admission_leaves_what_was_promised_to_others() -> None:
    kv = PagedLayout(8, 4)
    request = a_request(PROMPT[:8])  # 8 tokens and the next one: three blocks
    assert kv.admit(request, 6) == Shortage(3, 2, free_blocks=8, promised_blocks=6)
    assert not kv.holds(request.request_id)
    assert kv.admit(request, 9) == Shortage(3, 0, free_blocks=8, promised_blocks=9)
    assert admit(kv, request, 5) == Admission(0, 0)


# -- sharing by prefix ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(1, 21))
def test_at_least_the_last_token_is_computed(length: int) -> None:
    kv = PagedLayout(40, 4)
    run(kv)
    again = a_request(PROMPT[:length])
    assert admit(kv, again).num_cached_tokens == (length - 1) // 4 * 4
    write(kv, again)


def test_only_equal_leading_blocks_are_shared() -> None:
    kv = PagedLayout(40, 4)
    a, b, c, tail = (1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12), (13, 14)
    first = run(kv, a + b + tail)
    for prompt, shared in ((a + b + tail, 2), (a + c + tail, 1), (c + b + tail, 0), (b + tail, 0), (a[:3] + b, 0)):
        request = a_request(prompt)
        assert admit(kv, request) == Admission(4 * shared, shared)
        assert blocks(kv, request) == blocks(kv, first)[:shared]
        write(kv, request)


def test_nothing_is_found_before_it_was_written() -> None:
    kv = PagedLayout(40, 4)
    first, second = a_request(), a_request()
    admit(kv, first)
    assert kv.extend(first, 20) is None  # the blocks are there, but nothing is in them yet
    assert admit(kv, second).num_cached_tokens == 0
    first.num_computed_tokens = 9
    kv.written(first)
    third = a_request()
    assert admit(kv, third).num_cached_tokens == 8  # full blocks only


def test_answers_are_shared_too() -> None:
    kv = PagedLayout(40, 4)
    first = run(kv)
    decode(kv, first, 1, 2, 3, 4, 5)
    again = a_request((*PROMPT, 1, 2, 3, 4, 9))
    assert admit(kv, again).num_cached_tokens == 24


def test_cached_blocks_outlive_their_owner_and_are_evicted_leaf_first() -> None:
    kv = PagedLayout(6, 4)
    first = run(kv)
    table = blocks(kv, first)
    kv.release(first.request_id)
    assert (kv.num_cached_blocks, kv.num_free_blocks, kv.num_active_blocks) == (5, 1, 0)
    kv.take_changes()
    other = a_request(tuple(range(100, 112)))
    admit(kv, other)
    write(kv, other)
    changes = kv.take_changes()
    assert changes.evicted == (table[4], table[3])
    assert changes.blocks.uncached == (table[4], table[3])
    kv.release(other.request_id)
    again = a_request()
    assert admit(kv, again) == Admission(12, 3)


def test_a_hit_makes_a_prefix_young_again() -> None:
    kv = PagedLayout(6, 4)
    old, young = run(kv, (1, 2, 3, 4)), run(kv, (5, 6, 7, 8))
    kv.release(old.request_id), kv.release(young.request_id)
    hit = a_request((1, 2, 3, 4, 9))
    assert admit(kv, hit).num_shared_blocks == 1
    kv.release(hit.request_id)
    long = a_request(tuple(range(50, 70)))
    admit(kv, long)
    write(kv, long)
    assert kv.take_changes().evicted == (1,)
    kv.check()


def test_an_evicted_block_is_never_found() -> None:
    kv = PagedLayout(6, 4)
    kv.release(run(kv).request_id)
    kv.release(run(kv, tuple(range(100, 123))).request_id)
    assert admit(kv, a_request()).num_cached_tokens == 0


def test_hits_do_not_count_as_available_twice() -> None:
    """Blocks that come back to life cannot also be evicted for the rest of the prompt."""
    kv = PagedLayout(5, 4)
    kv.release(run(kv, PROMPT[:16]).request_id)
    assert (kv.num_cached_blocks, kv.num_free_blocks) == (4, 1)
    longer = a_request((*PROMPT[:16], *range(50, 58)))  # 25 tokens with the next one: 7 blocks, 4 of them found
    assert kv.admit(longer, 0) == Shortage(3, 1, free_blocks=1, cached_blocks=4, own_prefix_blocks=4)
    assert (kv.num_cached_blocks, kv.num_free_blocks) == (4, 1)
    assert admit(kv, a_request((*PROMPT[:16], 50))) == Admission(16, 4)
    kv.check()


def test_equal_prompts_at_once_keep_their_own_blocks_and_publish_once() -> None:
    kv = PagedLayout(20, 4)
    first, second = a_request(), a_request()
    admit(kv, first), admit(kv, second)
    write(kv, first), write(kv, second)
    assert not set(blocks(kv, first)) & set(blocks(kv, second))
    kv.release(second.request_id)
    assert kv.num_cached_blocks == 0
    kv.release(first.request_id)
    assert kv.num_cached_blocks == 5
    kv.check()


def test_colliding_digests_share_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_index, "block_digest", lambda parent, tokens: b"same")
    kv = PagedLayout(40, 4)
    first = run(kv)
    kv.take_changes()
    same = a_request()
    assert admit(kv, same) == Admission(4, 1)  # the first block has the digest now; all others collide with it
    other = a_request(tuple(range(40, 60)))
    assert admit(kv, other) == Admission(0, 0)
    write(kv, same), write(kv, other)
    for request in (first, same, other):
        kv.release(request.request_id)
        kv.check()
    assert kv.num_cached_blocks == 1


@pytest.mark.parametrize("block_size", [1, 2, 3, 16, 256])
def test_block_sizes(block_size: int) -> None:
    kv = PagedLayout(200, block_size)
    prompt = tuple(range(100))
    first = run(kv, prompt)
    assert len(blocks(kv, first)) == -(-100 // block_size)
    again = a_request(prompt)
    assert admit(kv, again).num_cached_tokens == 99 // block_size * block_size
    write(kv, again)
    kv.release(first.request_id), kv.release(again.request_id)
    kv.check()
    assert kv.num_active_blocks == 0


# -- switching sharing ------------------------------------------------------------------------------------------


def test_without_prefix_caching_nothing_is_found_or_kept() -> None:
    kv = PagedLayout(40, 4, prefix_caching=False)
    first = run(kv)
    assert admit(kv, a_request()).num_cached_tokens == 0
    kv.release(first.request_id)
    assert (kv.num_cached_blocks, kv.num_free_blocks) == (0, 40)
    assert kv.take_changes().blocks.cached == ()


def test_switching_it_off_forgets_and_on_again_starts_anew() -> None:
    kv = PagedLayout(40, 4)
    running, gone = run(kv), run(kv, tuple(range(50, 60)))
    kv.release(gone.request_id)
    kv.take_changes()
    kv.set_prefix_caching(False)
    assert set(kv.take_changes().blocks.uncached) == {*blocks(kv, running), 5, 6}
    kv.check()
    assert kv.num_cached_blocks == 0
    kv.set_prefix_caching(True)
    assert admit(kv, a_request()).num_cached_tokens == 0
    decode(kv, running, 1, 2, 3, 4, 5)  # began before: publishes no more
    kv.release(running.request_id)
    assert kv.num_cached_blocks == 0
    fresh = run(kv)
    kv.release(fresh.request_id)
    assert kv.num_cached_blocks == 5
    kv.check()


def test_who_began_without_sharing_publishes_all_of_it_once_sharing_is_on() -> None:
    kv = PagedLayout(40, 4, prefix_caching=False)
    running = run(kv)
    kv.set_prefix_caching(True)
    decode(kv, running, 1)
    assert admit(kv, a_request()).num_cached_tokens == 16
