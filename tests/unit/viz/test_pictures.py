"""The notes' pictures are those of the present engine, and say what they show."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from engine.telemetry.record import EventKind
from viz.pictures import scenes, strip
from viz.pictures.__main__ import FOLDER, PICTURES, measured
from viz.pictures.diagrams import positions_of
from viz.pictures.memory import map_after, owners
from viz.pictures.svg import letter


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_picture_is_what_the_engine_does_now(name: str):
    """Drawn anew by `python -m viz.pictures`."""
    assert (FOLDER / f"{name}.svg").read_text() == PICTURES[name]()


def test_every_picture_is_there_is_sound_and_no_other():
    names = set(PICTURES) | set(measured())
    assert {path.stem for path in FOLDER.glob("*.svg")} == names
    for name in names:
        text = (FOLDER / f"{name}.svg").read_text()
        root = ElementTree.fromstring(text)
        assert root.tag.endswith("svg")
        assert root.get("aria-label")
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_letters():
    assert [letter(n) for n in (1, 2, 26, 27, 52, 53)] == ["A", "B", "Z", "AA", "AZ", "BA"]


@pytest.mark.parametrize("policy", ["static", "mixed", "decode_first", "prefill_first"])
def test_the_strip_shows_every_row_that_was_computed(policy: str):
    records = scenes.trade(policy).records
    kinds = [kind for row in strip.cells_of(records).values() for kind, _ in row.values()]
    assert kinds.count("decode") == sum(len(record.active_decode) for record in records)
    assert kinds.count("inactive") == sum(record.num_inactive_rows for record in records)
    tokens = sum(n for row in strip.cells_of(records).values() for kind, n in row.values() if kind == "prefill")
    assert tokens == sum(record.num_tokens[rid] for record in records for rid in record.active_prefill)


def test_the_strip_shows_inactive_slots_and_preemptions():
    records = scenes.uneven("static").records
    kinds = [kind for row in strip.cells_of(records).values() for kind, _ in row.values()]
    assert kinds.count("inactive") == records[-1].wasted_slot_steps == 72
    kinds = [kind for row in strip.cells_of(scenes.tight().records).values() for kind, _ in row.values()]
    assert kinds.count("preempted") == scenes.tight().records[-1].num_preemptions > 0


def test_the_rectangle_is_one():
    rows = positions_of(scenes.padded().records)
    assert len({len(row) for row in rows.values()}) == 1
    waste = sum(kind in ("padding", "inactive") for row in rows.values() for kind in row)
    assert waste == scenes.padded().records[-1].wasted_slot_steps


def test_the_block_map_of_a_picture_is_that_of_the_record():
    records = scenes.shared().records
    for record in records:
        blocks = map_after(records, record.step)
        held = owners(blocks)
        assert len(held) == record.num_active_blocks
        assert sum(max(fill for _, fill in who) for who in held.values()) == record.num_stored_tokens
    assert max(len(who) for who in owners(map_after(records, 6)).values()) == 4


def test_a_fork_copies_the_partly_filled_block():
    copies = [e for r in scenes.forked().records for e in r.events if e.kind is EventKind.COPIED]
    assert len(copies) == 2
