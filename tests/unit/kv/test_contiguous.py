"""The contiguous layout: one run a request, first fit, and real external fragmentation."""

from __future__ import annotations

import random

import pytest

from engine.kv.contiguous import ContiguousLayout
from engine.kv.layout import Admission, Shortage
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams


def a_request(request_id: int, num_prompt_tokens: int, max_tokens: int) -> Request:
    return Request(request_id, (1,) * num_prompt_tokens, SamplingParams(), max_tokens, 0)


def admit(kv: ContiguousLayout, request_id: int, num_blocks: int) -> Admission | Shortage:
    """A request whose prompt and answer take so many blocks of 4."""
    admission = kv.admit(a_request(request_id, 4 * num_blocks - 2, 2), 99)
    kv.check()
    return admission


def test_prompt_and_answer_are_reserved_at_once() -> None:
    kv = ContiguousLayout(10, 4)
    assert kv.admit(a_request(0, 5, 4), 0) == Admission(0, 0)
    assert kv.table(0) == [0, 1, 2]
    assert (kv.num_active_blocks, kv.num_free_blocks, kv.num_stored_tokens) == (3, 7, 0)


def test_the_first_run_that_is_long_enough_is_taken() -> None:
    kv = ContiguousLayout(10, 4)
    for request_id, size in enumerate((2, 1, 3, 1)):
        admit(kv, request_id, size)
    kv.release(0), kv.release(2)  # free: 0-1, 3-5, 7-9
    admit(kv, 10, 3)
    assert kv.table(10) == [3, 4, 5]
    admit(kv, 11, 1)
    assert kv.table(11) == [0]
    admit(kv, 12, 1)
    assert kv.table(12) == [1]
    admit(kv, 13, 2)
    assert kv.table(13) == [7, 8]


def test_enough_free_blocks_but_no_run() -> None:
    kv = ContiguousLayout(9, 4)
    for request_id in range(9):
        admit(kv, request_id, 1)
    for request_id in (0, 2, 4, 5, 8):
        kv.release(request_id)
    assert kv.external_fragmentation == pytest.approx(1 - 2 / 5)
    assert admit(kv, 20, 3) == Shortage(3, 2, free_blocks=5, is_fragmented=True)
    assert admit(kv, 20, 6) == Shortage(6, 5, free_blocks=5)
    assert not kv.holds(20)
    assert isinstance(admit(kv, 20, 2), Admission)


def test_neighbouring_runs_join() -> None:
    kv = ContiguousLayout(6, 4)
    for request_id in range(6):
        admit(kv, request_id, 1)
    assert (kv.num_free_blocks, kv.external_fragmentation) == (0, 0.0)
    for request_id in (1, 3, 2, 5, 4, 0):
        kv.release(request_id)
        kv.check()
    assert kv.external_fragmentation == 0.0
    assert isinstance(admit(kv, 9, 6), Admission)


def test_blocks_are_handed_to_be_cleared_when_they_are_reached() -> None:
    kv = ContiguousLayout(10, 4)
    request = a_request(0, 5, 10)
    kv.admit(request, 0)
    assert kv.take_changes().new_block_ids == ()
    told = []
    for count in (3, 2, 1, 1, 1, 1):
        assert kv.extend(request, count) is None
        request.num_computed_tokens += count
        kv.written(request)
        told.append(kv.take_changes().new_block_ids)
    assert told == [(0,), (1,), (), (), (), (2,)]
    assert kv.num_stored_tokens == 9
    assert kv.num_missing_blocks(request) == 0
    kv.release(0)
    assert kv.num_stored_tokens == 0


def test_nothing_is_ever_shared() -> None:
    kv = ContiguousLayout(10, 4)
    parent, child = a_request(0, 8, 2), a_request(1, 8, 2)
    kv.admit(parent, 0)
    kv.extend(parent, 8)
    parent.num_computed_tokens = 8
    kv.written(parent)
    assert kv.fork(child, parent, 0) is None
    assert kv.admit(child, 0) == Admission(0, 0)
    assert not set(kv.table(0)) & set(kv.table(1))
    kv.forget_prefixes()
    assert (kv.num_cached_blocks, kv.can_share) == (0, False)


@pytest.mark.parametrize("num_blocks", [2, 9, 64, 200_000])
def test_random_use_against_a_plain_map(num_blocks: int) -> None:
    """First fit, told by a list of booleans."""
    rng, kv = random.Random(num_blocks), ContiguousLayout(num_blocks, 4)
    small = min(num_blocks, 500)
    taken = [False] * small + [True] * (num_blocks - small)
    if num_blocks > small:
        kv._free_runs, kv._num_free = [(0, small)], small  # the rest plays no part: a plain map of it would be slow
    running: dict[int, int] = {}
    for request_id in range(400):
        size = rng.randint(1, max(1, small // 4))
        starts = [i for i in range(small - size + 1) if not any(taken[i : i + size])]
        admission = kv.admit(a_request(request_id, 4 * size - 2, 2), 0)
        if starts:
            assert kv.table(request_id) == list(range(starts[0], starts[0] + size))
            taken[starts[0] : starts[0] + size] = [True] * size
            running[request_id] = size
        else:
            assert isinstance(admission, Shortage)
            assert admission.is_fragmented == (taken.count(False) >= size)
        while running and rng.random() < 0.5:
            gone = rng.choice(list(running))
            first, size = kv.table(gone)[0], running.pop(gone)
            assert kv.release(gone) == size
            taken[first : first + size] = [False] * size
        assert kv.num_free_blocks == taken.count(False)
    if num_blocks == small:
        kv.check()


def test_check_finds_what_is_wrong() -> None:
    kv = ContiguousLayout(6, 4)
    admit(kv, 0, 2)
    kv._free_runs = [(1, 5)]
    with pytest.raises(AssertionError):
        kv.check()
    kv = ContiguousLayout(6, 4)
    kv._free_runs = [(0, 3), (3, 3)]
    with pytest.raises(AssertionError, match="touch"):
        kv.check()
