"""The ring: a bounded history that any reader can follow, from its beginning or from where it was."""

from __future__ import annotations

import json
import threading
from itertools import pairwise

import pytest

from engine.telemetry.record import BlockChanges, Event, EventKind, StepRecord
from engine.telemetry.ring import BlockMap, RecordRing
from tests.engine_driver import Driver


def record(step: int, **more: object) -> StepRecord:
    fields = {"policy": "mixed", "kv_layout": "paged", "token_budget": 8, "max_num_seqs": 4}
    return StepRecord(step=step, time_s=0.0, **({"num_blocks": 10, "block_size": 4} | fields | more))  # type: ignore[arg-type]


def ring_of(count: int, capacity: int = 10) -> RecordRing:
    ring = RecordRing("life", capacity)
    for step in range(1, count + 1):
        ring.append(record(step))
    return ring


def test_an_empty_ring() -> None:
    ring = RecordRing("life")
    steps = ring.since()
    assert (ring.last, ring.newest, steps.records) == (None, 0, ())
    assert steps.base is not None


def test_a_new_reader_gets_the_base_and_everything() -> None:
    steps = ring_of(4).since()
    assert (steps.epoch, steps.oldest, steps.newest) == ("life", 1, 4)
    assert [r.step for r in steps.records] == [1, 2, 3, 4]
    assert steps.base is not None
    assert (steps.base.step, steps.base.num_blocks, steps.base.block_size) == (0, 10, 4)


def test_a_reader_goes_on_where_it_was() -> None:
    ring = ring_of(8)
    for step in range(1, 9):
        steps = ring.since(step, "life")
        assert [r.step for r in steps.records] == list(range(step + 1, 9))
        assert steps.base is None
    assert [r.step for r in ring.since(2, limit=3).records] == [3, 4, 5]


@pytest.mark.parametrize(("step", "epoch"), [(3, "life"), (9, "another life"), (999, "life"), (0, None), (None, None)])
def test_a_reader_that_is_too_late_or_from_elsewhere_starts_over(step: int | None, epoch: str | None) -> None:
    steps = ring_of(25, capacity=10).since(step, epoch)
    assert [r.step for r in steps.records] == list(range(16, 26))
    assert steps.base is not None
    assert steps.base.step == 15


def test_it_stays_bounded() -> None:
    ring = ring_of(1000, capacity=10)
    assert len(ring.since().records) == 10
    assert (ring.newest, ring.last.step if ring.last else 0) == (1000, 1000)


@pytest.mark.parametrize("seed", range(4))
def test_base_and_records_lead_to_the_map_as_it_is(seed: int) -> None:
    """A real run, much longer than the ring, with sharing, preemption, aborts and changes of the pool: from wherever a
    reader starts, it arrives at the engine's own tables."""
    driver = Driver(block_size=4, num_blocks=11, max_num_seqs=4)
    ring = RecordRing("life", 12)
    common = list(range(10))
    for turn in range(30):
        driver.add([*common, seed + turn], 9, n=1 + turn % 3 // 2, seed=turn)
        if turn % 7 == 3:
            driver.engine.abort(len(driver.requests) - 1)
        if turn % 10 == 6:
            driver.engine.change({"num_blocks": 11 + turn % 3})
        if turn % 10 == 9:
            driver.engine.change({"kv_layout": "contiguous" if turn % 20 == 9 else "paged"})
        for _ in range(4):
            made = driver.step()
            if made is not None:
                ring.append(made)
        steps = ring.since()
        assert steps.base is not None
        rebuilt = steps.base
        for one in steps.records:
            rebuilt.apply(one)
        assert rebuilt == driver.map
        assert rebuilt is not ring.since().base
    assert driver.engine.scheduler.num_preemptions
    assert driver.engine.scheduler.prefix_hit_tokens


def test_readers_beside_a_writer_see_whole_steps_in_order() -> None:
    ring, stop, seen = RecordRing("life", 50), threading.Event(), []

    def read() -> None:
        at = None
        while not stop.is_set() or at != 3000:
            steps = ring.since(at, "life")
            numbers = [r.step for r in steps.records]
            assert all(b == a + 1 for a, b in pairwise(numbers))
            if numbers:
                assert steps.base is not None or numbers[0] == (at or 0) + 1
                at = numbers[-1]
        seen.append(at)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for step in range(1, 3001):
        ring.append(record(step))
    stop.set()
    for reader in readers:
        reader.join(20)
    assert seen == [3000] * 3


# -- the map ----------------------------------------------------------------------------------------------------


def test_the_order_in_which_changes_apply() -> None:
    """Released before tables, uncached before cached."""
    block_map = BlockMap(0, 10, 4, tables={1: [3, 4]}, cached={7: "aa", 8: "bb"})
    changes = BlockChanges(tables={1: (0, (5,)), 2: (0, (3,))}, released=(1,), cached=((7, "cc"),), uncached=(7, 8))
    block_map.apply(record(1, blocks=changes, computed={1: 2, 9: 9}))
    assert block_map.tables == {1: [5], 2: [3]}
    assert block_map.cached == {7: "cc"}
    assert block_map.computed == {1: 2}


def test_a_table_changes_from_an_index_on() -> None:
    block_map = BlockMap(0, 10, 4, tables={1: [3, 4, 5]})
    block_map.apply(record(1, blocks=BlockChanges(tables={1: (2, (8, 9))})))
    assert block_map.tables == {1: [3, 4, 8, 9]}
    block_map.apply(record(2, blocks=BlockChanges(tables={1: (1, ())})))
    assert block_map.tables == {1: [3]}


def test_a_pool_of_another_size_is_another_map() -> None:
    block_map = BlockMap(0, 10, 4, tables={1: [3]}, cached={7: "aa"})
    block_map.apply(record(1, num_blocks=20))
    assert (block_map.tables, block_map.cached, block_map.num_blocks) == ({}, {}, 20)


def test_requests_are_known_from_arrival_to_end() -> None:
    block_map = BlockMap(0, 10, 4)
    block_map.apply(record(1, events=(Event(EventKind.ARRIVED, 5, {"num_prompt_tokens": 3}),)))
    block_map.apply(record(2, outputs={5: 1, 6: 1}))
    assert block_map.requests == {5: {"num_prompt_tokens": 3, "num_output_tokens": 1}}
    block_map.apply(record(3, events=(Event(EventKind.FINISHED, 5, {}),)))
    assert block_map.requests == {}


def test_a_copy_is_independent_and_json() -> None:
    block_map = BlockMap(3, 10, 4, {1: [3]}, {1: 4}, {7: "aa"}, {1: {"max_tokens": 3}})
    copy = block_map.copy()
    assert copy == block_map
    copy.tables[1].append(9)
    copy.requests[1]["max_tokens"] = 0
    assert (block_map.tables, block_map.requests) == ({1: [3]}, {1: {"max_tokens": 3}})
    assert json.loads(json.dumps(block_map.to_dict()))["block_tables"] == {"1": [3]}


def test_whether_prefixes_are_shared_is_known_from_the_start_and_from_what_changes_it() -> None:
    block_map = BlockMap(prefix_caching=True)
    block_map.apply(record(1))
    assert block_map.copy().prefix_caching is True
    block_map.apply(record(2, events=(Event(EventKind.DRAINING, None, {"prefix_caching": False}),)))
    assert block_map.to_dict()["prefix_caching"] is False
    block_map.apply(record(3, events=(Event(EventKind.SETTINGS, None, {"prefix_caching": True}),)))
    assert block_map.prefix_caching is True
