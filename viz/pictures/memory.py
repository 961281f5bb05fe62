"""The block pool at one moment, and block tables: logical block → physical block.

Owns what a block looks like: how full, whose, shared, cached, reserved. Never knows how the run came about.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.telemetry.record import StepRecord
from engine.telemetry.ring import BlockMap
from viz.pictures.svg import Sheet, hue, letter

SIDE = 26
GAP = 4


def map_after(records: Sequence[StepRecord], step: int) -> BlockMap:
    """The block map just after `step`, told by the records alone."""
    blocks = BlockMap(0, records[0].num_blocks, records[0].block_size)
    for record in records:
        if record.step <= step:
            blocks.apply(record)
    return blocks


def owners(blocks: BlockMap) -> dict[int, list[tuple[int, int]]]:
    """block → (request, tokens it stores there) for each owner."""
    held: dict[int, list[tuple[int, int]]] = {}
    for request_id, table in sorted(blocks.tables.items()):
        stored = blocks.computed.get(request_id, 0)
        for index, block in enumerate(table):
            fill = max(0, min(blocks.block_size, stored - index * blocks.block_size))
            held.setdefault(block, []).append((request_id, fill))
    return held


def draw_grid(sheet: Sheet, x: float, y: float, blocks: BlockMap, per_row: int) -> None:
    """All blocks, row by row."""
    held = owners(blocks)
    for block in range(blocks.num_blocks):
        left = x + (block % per_row) * (SIDE + GAP)
        top = y + (block // per_row) * (SIDE + GAP)
        draw_block(sheet, left, top, held.get(block, []), blocks.block_size, block in blocks.cached)


def draw_block(
    sheet: Sheet, x: float, y: float, held: Sequence[tuple[int, int]], block_size: int, is_cached: bool
) -> None:
    """One block: filled from the left as far as it is used, striped where it is reserved and empty."""
    if not held:
        sheet.rect(x, y, SIDE, SIDE, "var(--sunken)", "var(--line)")
        if is_cached:
            sheet.text(x + SIDE / 2, y + SIDE - 9, "c", 12, "middle", "dim")
        return
    sheet.rect(x, y, SIDE, SIDE, "url(#reserved)", "var(--line)")
    band = SIDE / len(held)
    for index, (request_id, fill) in enumerate(held):
        sheet.rect(x, y + index * band, SIDE * fill / block_size, band, hue(request_id))
    name = letter(held[0][0]) if len(held) == 1 else f"×{len(held)}"
    is_full = held[0][1] == block_size
    sheet.text(x + SIDE / 2, y + SIDE - 9, name, 12, "middle", "on" if is_full else "halo")


def grid_height(blocks: BlockMap, per_row: int) -> float:
    """How tall `draw_grid` makes it."""
    return -(-blocks.num_blocks // per_row) * (SIDE + GAP)


def grids(title: str, sides: Sequence[tuple[str, str, BlockMap]], per_row: int = 16) -> str:
    """Pools below each other, each with a heading and a line about it."""
    width = 32 + per_row * (SIDE + GAP)
    sheet = Sheet(max(width, 640), 12 + sum(56 + grid_height(blocks, per_row) for _, _, blocks in sides) + 26, title)
    y = 10.0
    for heading, about, blocks in sides:
        sheet.text(16, y + 16, heading, 13, kind="title")
        sheet.text(16, y + 33, about, 11.5, kind="dim")
        draw_grid(sheet, 16, y + 44, blocks, per_row)
        y += 56 + grid_height(blocks, per_row)
    _grid_legend(sheet, y, any(blocks.cached for _, _, blocks in sides))
    return sheet.render()


def _grid_legend(sheet: Sheet, y: float, has_cached: bool) -> None:
    words = "coloured: keys and values stored · striped: owned, empty · grey: free"
    sheet.text(16, y + 10, words + (" · c: cached, findable by its prefix" if has_cached else ""), 11, kind="dim")


def tables(title: str, blocks: BlockMap, request_ids: Sequence[int], pool_blocks: int) -> str:
    """Block tables above the pool, with a line from every entry to its block."""
    longest = max(len(blocks.tables[request_id]) for request_id in request_ids)
    table_width = longest * (SIDE + GAP) + 40
    width = max(32 + len(request_ids) * table_width, 32 + pool_blocks * (SIDE + GAP), 480)
    sheet = Sheet(width, 250, title)
    sheet.text(16, 26, "block tables: what each request believes", 12, kind="dim")
    sheet.text(16, 236, "the pool: where it really lies", 12, kind="dim")
    held = owners(blocks)
    for number, request_id in enumerate(request_ids):
        left = 16 + number * table_width
        sheet.text(left, 62, letter(request_id), 15, kind="title")
        for index, block in enumerate(blocks.tables[request_id]):
            x = left + 22 + index * (SIDE + GAP)
            sheet.rect(x, 44, SIDE, SIDE, "var(--card)", hue(request_id))
            sheet.text(x + SIDE / 2, 61, str(block), 11, "middle", "mono")
            sheet.curve(x + SIDE / 2, 44 + SIDE, 16 + block * (SIDE + GAP) + SIDE / 2, 180, hue(request_id))
    for block in range(pool_blocks):
        x = 16 + block * (SIDE + GAP)
        draw_block(sheet, x, 180, held.get(block, []), blocks.block_size, block in blocks.cached)
        sheet.text(x + SIDE / 2, 218, str(block), 10, "middle", "dim")
    return sheet.render()
