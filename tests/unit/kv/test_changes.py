"""What happened between two steps, and two such stretches as one: replayed, they lead to the same map."""

from __future__ import annotations

import random

from engine.kv.changes import ChangeLog
from engine.scheduling.decisions import merge_changes
from engine.scheduling.plan import BlockCopy
from engine.telemetry.record import BlockChanges, StepRecord
from engine.telemetry.ring import BlockMap


def apply(block_map: BlockMap, *all_changes: BlockChanges) -> BlockMap:
    for changes in all_changes:
        block_map.apply(
            StepRecord(
                step=block_map.step + 1,
                time_s=0,
                policy="mixed",
                kv_layout="paged",
                token_budget=1,
                max_num_seqs=1,
                num_blocks=block_map.num_blocks,
                block_size=block_map.block_size,
                blocks=changes,
            )
        )
    return block_map


def test_a_log_tells_everything_once() -> None:
    log = ChangeLog()
    log.new[4] = None
    log.copies.append(BlockCopy(1, 2, 3))
    log.evicted.append(4)
    log.table_changed(7, 2)
    log.table_changed(7, 1)
    log.table_released(9)
    log.block_cached(5, "aa")
    changes = log.take({7: [10, 11, 12]})
    assert (changes.new_block_ids, changes.copies, changes.evicted) == ((4,), (BlockCopy(1, 2, 3),), (4,))
    assert changes.blocks == BlockChanges(tables={7: (1, (11, 12))}, released=(9,), cached=((5, "aa"),))
    assert log.take({7: [10]}).blocks == BlockChanges()


def test_what_was_published_and_forgotten_is_not_cached_at_the_end() -> None:
    log = ChangeLog()
    log.block_cached(5, "aa")
    log.block_uncached(5)
    assert apply(BlockMap(0, 10, 4), log.take({}).blocks).cached == {}
    log.block_uncached(5)
    log.block_cached(5, "bb")
    assert apply(BlockMap(0, 10, 4, cached={5: "aa"}), log.take({}).blocks).cached == {5: "bb"}


def test_a_table_that_was_released_and_given_anew() -> None:
    log = ChangeLog()
    log.table_changed(7, 3)
    log.table_released(7)
    log.table_changed(7, 0)
    changes = log.take({7: [1]}).blocks
    assert apply(BlockMap(0, 10, 4, tables={7: [5, 6, 7, 8]}), changes).tables == {7: [1]}


def random_changes(rng: random.Random, tables: dict[int, list[int]], cached: dict[int, str]) -> BlockChanges:
    """Something a layout could do to these tables, done to them."""
    log = ChangeLog()
    for _ in range(rng.randint(0, 6)):
        request_id, block = rng.randrange(4), rng.randrange(10)
        match rng.choice(["grow", "replace", "release", "cache", "forget"]):
            case "grow":
                table = tables.setdefault(request_id, [])
                log.table_changed(request_id, len(table))
                table.append(block)
            case "replace" if tables.get(request_id):
                index = rng.randrange(len(tables[request_id]))
                tables[request_id][index] = block
                log.table_changed(request_id, index)
            case "release" if request_id in tables:
                del tables[request_id]
                log.table_released(request_id)
            case "cache":
                cached[block] = f"{rng.randrange(100)}"
                log.block_cached(block, cached[block])
            case "forget" if cached.pop(block, None):
                log.block_uncached(block)
    return log.take(tables).blocks


def test_two_stretches_merged_are_the_two_in_a_row() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        tables: dict[int, list[int]] = {0: [1, 2, 3], 1: [4]}
        cached = {8: "x", 9: "y"}
        before = BlockMap(0, 10, 4, {rid: list(table) for rid, table in tables.items()}, {}, dict(cached))
        first = random_changes(rng, tables, cached)
        then = random_changes(rng, tables, cached)
        in_a_row = apply(before.copy(), first, then)
        merged = apply(before.copy(), merge_changes(first, then))
        assert (merged.tables, merged.cached) == (in_a_row.tables, in_a_row.cached) == (tables, cached)
