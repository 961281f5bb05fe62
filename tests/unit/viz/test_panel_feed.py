"""The step feed: what a page is sent, when it starts over, and that the browser's model then knows the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.telemetry.record import StepRecord
from engine.telemetry.ring import BlockMap
from tests.unit.viz.javascript import run_js
from tests.unit.viz.recorded import Source, Traffic
from viz import feed as feed_module
from viz.feed import Feed

RUNS: dict[str, dict[str, Any]] = {
    "paged_under_pressure": {"num_blocks": 24},
    "static_contiguous": {"policy": "static", "kv_layout": "contiguous", "num_blocks": 80},
    "turns": {"policy": "decode_first", "max_num_seqs": 2},
    "no_sharing": {"policy": "prefill_first", "prefix_caching": False, "block_size": 1, "num_blocks": 150},
}

REPLAY = """
    const { History } = await load("history.js");
    const history = new History();
    const maps = {};
    for (const answer of given.answers) {
        history.ingest(answer);
        if (given.each) maps[history.newest] = history.map.clone();
    }
    for (const step of given.steps ?? []) maps[step] = history.mapAt(step).clone();
    return { frames: history.frames, maps, newest: history.newest, oldest: history.oldest, skipped: history.skipped,
             state: history.state, lives: [...history.lives.all.values()] };
"""


def as_frame(record: StepRecord) -> dict[str, Any]:
    """A record in the browser's words."""

    def by_id(values: Any) -> dict[str, Any]:
        return {str(key): value for key, value in values.items()}

    return {
        "step": record.step,
        "policy": record.policy,
        "layout": record.kv_layout,
        "budget": record.token_budget,
        "slots": record.max_num_seqs,
        "numBlocks": record.num_blocks,
        "blockSize": record.block_size,
        "pendingPrefill": list(record.pending_prefill),
        "pendingDecode": list(record.pending_decode),
        "activePrefill": list(record.active_prefill),
        "activeDecode": list(record.active_decode),
        "tokens": by_id(record.num_tokens),
        "padding": by_id(record.padding),
        "inactive": record.num_inactive_rows,
        "computed": by_id(record.computed),
        "outputs": by_id(record.outputs),
        "waiting": by_id({rid: wait.to_dict() for rid, wait in record.waiting.items()}),
        "waitDefault": record.waiting_default.to_dict() if record.waiting_default else None,
    }


def browser_map(raw: dict[str, Any]) -> dict[str, Any]:
    return {
        "tables": {int(rid): ids for rid, ids in raw["tables"].items()},
        "computed": {int(rid): n for rid, n in raw["computed"].items()},
        "cached": {int(block): head for block, head in raw["cached"].items()},
    }


def python_map(blocks: BlockMap) -> dict[str, Any]:
    return {"tables": blocks.tables, "computed": blocks.computed, "cached": blocks.cached}


def check_flat_arrays(raw: dict[str, Any]) -> None:
    """The arrays a grid is drawn from say the same as the tables."""
    owners: dict[int, list[tuple[int, int]]] = {}
    for rid, ids in raw["tables"].items():
        for index, block in enumerate(ids):
            owners.setdefault(block, []).append((int(rid), index))
    for block, (owner, index, refs) in enumerate(zip(raw["owner"], raw["index"], raw["refs"], strict=True)):
        assert refs == len(owners.get(block, []))
        assert refs == 0 or (owner, index) in owners[block]
        assert (owner == -1) == (refs == 0)


@pytest.mark.parametrize("name", RUNS)
def test_the_browser_reconstructs_every_step(name: str) -> None:
    source = Source()
    feed = Feed(source)
    traffic = Traffic(seed=len(name), num_requests=40, **RUNS[name])
    since, epoch, answers, records, maps = None, None, [], [], {}
    blocks = BlockMap()
    while (record := traffic.step()) is not None:
        source.ring.append(record)
        records.append(record)
        blocks.apply(record)
        maps[record.step] = python_map(blocks.copy())
        if len(records) % 7 == 0:
            answer, _ = feed.answer(since, epoch)
            answers.append(json.loads(answer.text))
            since, epoch = answer.newest, "one"
    answers.append(json.loads(feed.answer(since, epoch)[0].text))
    kinds = {event.kind for record in records for event in record.events}
    assert len(records) > 50
    assert "preempted" in kinds or name != "paged_under_pressure"

    asked = [records[i].step for i in (0, 3, len(records) // 2, len(records) // 3, len(records) - 1)]
    seen = run_js(REPLAY, {"answers": answers, "steps": asked})
    assert [answer["base"] is not None for answer in answers] == [True] + [False] * (len(answers) - 1)
    assert [frame["step"] for frame in seen["frames"]] == [record.step for record in records]
    for frame, record in zip(seen["frames"], records, strict=True):
        wanted = as_frame(record)
        assert {key: frame[key] for key in wanted} == wanted
        assert frame["t"] == pytest.approx(record.time_s, abs=1e-5)
        assert frame["memory"]["stored"] == record.num_stored_tokens
        assert frame["memory"]["internal"] == pytest.approx(record.internal_fragmentation, abs=1e-4)
        assert frame["counters"]["wasted"] == record.wasted_slot_steps
        assert len(frame["events"]) + len(frame["evicted"]) == len(record.events)
    for step in asked:
        assert browser_map(seen["maps"][str(step)]) == maps[step], f"block map after step {step}"
        check_flat_arrays(seen["maps"][str(step)])


def test_a_page_that_comes_late_starts_from_the_ring_and_goes_on() -> None:
    source = Source(capacity=30)
    feed = Feed(source)
    records = Traffic(seed=3, num_requests=40, num_blocks=24).records()
    assert len(records) > 120
    blocks = BlockMap()
    for record in records[:100]:
        source.ring.append(record)
        blocks.apply(record)
        if record.step == 40:
            feed.answer(None, None)  # somebody else looked before
    first = json.loads(feed.answer(None, None)[0].text)
    for record in records[100:110]:
        source.ring.append(record)
        blocks.apply(record)
    second = json.loads(feed.answer(100, "one")[0].text)
    assert second["base"] is None
    seen = run_js(REPLAY, {"answers": [first, second], "steps": [110]})
    assert [frame["step"] for frame in seen["frames"]] == list(range(81, 111))
    assert [as_frame(record) for record in records[80:110]] == [
        {key: frame[key] for key in as_frame(records[0])} for frame in seen["frames"]
    ]
    assert browser_map(seen["maps"]["110"]) == python_map(blocks)
    assert seen["skipped"] is None


def test_each_record_is_encoded_once_for_all_pages() -> None:
    source = Source()
    feed = Feed(source)
    for record in Traffic(seed=1, num_requests=10).records():
        source.ring.append(record)
    answers = {feed.answer(None, None)[0].text for _ in range(10)}
    assert feed.num_encoded == source.ring.newest
    assert len(answers) == 1


def test_a_page_that_was_away_too_long_is_told_what_it_skipped() -> None:
    source = Source(capacity=20)
    feed = Feed(source)
    records = Traffic(seed=2, num_requests=30).records()
    for record in records[:60]:
        source.ring.append(record)
    answer = json.loads(feed.answer(25, "one")[0].text)
    assert answer["skipped"] == [26, 40]
    assert answer["base"]["step"] == 40
    assert [step["s"] for step in answer["steps"]] == list(range(41, 61))
    assert run_js(REPLAY, {"answers": [answer]})["skipped"] == [26, 40]


def test_another_epoch_starts_over() -> None:
    source = Source()
    feed = Feed(source)
    for record in Traffic(seed=2, num_requests=5).records():
        source.ring.append(record)
    before = feed.answer(None, None)[0]
    source.ring = Source(epoch="two").ring
    for record in Traffic(seed=9, num_requests=3).records():
        source.ring.append(record)
    after = json.loads(feed.answer(before.newest, "one")[0].text)
    assert after["epoch"] == "two"
    assert after["base"]["step"] == 0
    assert after["skipped"] is None
    seen = run_js(REPLAY, {"answers": [json.loads(before.text), after]})
    assert seen["oldest"] == 1
    assert seen["newest"] == source.ring.newest


def test_a_cursor_from_the_future_starts_over() -> None:
    source = Source()
    for record in Traffic(seed=2, num_requests=5).records():
        source.ring.append(record)
    answer = json.loads(Feed(source).answer(10_000, "one")[0].text)
    assert answer["base"] is not None
    assert answer["steps"][0]["s"] == 1


def test_long_histories_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_STEPS_AT_ONCE", 25)
    source = Source()
    feed = Feed(source)
    records = Traffic(seed=4, num_requests=30).records()
    for record in records:
        source.ring.append(record)
    since, epoch, answers = None, None, []
    while since != records[-1].step:
        answer, _ = feed.answer(since, epoch)
        assert answer.has_news
        answers.append(json.loads(answer.text))
        assert len(answers[-1]["steps"]) <= 25
        since, epoch = answer.newest, "one"
    seen = run_js(REPLAY, {"answers": answers})
    assert [frame["step"] for frame in seen["frames"]] == [record.step for record in records]


def test_a_page_that_cannot_keep_up_jumps_to_the_present() -> None:
    source = Source()
    feed = Feed(source)
    records = Traffic(seed=5, num_requests=40, num_blocks=24).records()
    blocks = BlockMap()
    for record in records[:80]:
        source.ring.append(record)
        blocks.apply(record)
    first = json.loads(feed.answer(None, None)[0].text)
    for record in records[80:100]:
        source.ring.append(record)
        blocks.apply(record)
    jump = json.loads(feed.jump(80).text)
    for record in records[100:105]:
        source.ring.append(record)
        blocks.apply(record)
    after = json.loads(feed.answer(100, "one")[0].text)
    seen = run_js(REPLAY, {"answers": [first, jump, after], "steps": [105]})
    assert seen["skipped"] == [81, 100]
    assert [frame["step"] for frame in seen["frames"]] == [101, 102, 103, 104, 105]
    wanted = [as_frame(record) for record in records[100:105]]
    assert [{key: frame[key] for key in wanted[0]} for frame in seen["frames"]] == wanted
    assert browser_map(seen["maps"]["105"]) == python_map(blocks)


def test_the_state_comes_when_it_changed_and_without_what_the_steps_tell() -> None:
    source = Source()
    feed = Feed(source)
    first, seen = feed.answer(None, None)
    assert json.loads(first.text)["state"] == {"policy": "mixed", "paused": False}
    again, seen = feed.answer(first.newest, "one", seen)
    assert not again.has_news
    source.settings["paused"] = True
    changed, _ = feed.answer(first.newest, "one", seen)
    assert changed.has_news
    assert json.loads(changed.text)["state"]["paused"] is True


def test_nothing_that_was_typed_is_in_the_feed() -> None:
    source = Source()
    traffic = Traffic(seed=1, num_requests=0)
    traffic.add(prompt=(77777, 88888), max_tokens=3)
    while (record := traffic.step()) is not None:
        source.ring.append(record)
    text = Feed(source).answer(None, None)[0].text
    assert "77777" not in text
    assert "88888" not in text
    assert '"num_prompt_tokens":2' in text


def test_a_finished_run_round_trips() -> None:
    records = Traffic(seed=8, num_requests=12, num_blocks=24).records()
    feed = Feed(Source())
    seen = run_js(REPLAY, {"answers": [json.loads(feed.run(feed.add_run(records)) or "")]})
    assert {life["id"] for life in seen["lives"]} == set(range(1, 13))
    for frame, record in zip(seen["frames"], records, strict=True):
        assert frame["activeDecode"] == list(record.active_decode)
        assert frame["tokens"] == {str(rid): n for rid, n in record.num_tokens.items()}
    behind = [frame["waitDefault"]["behind"] for frame in seen["frames"] if "behind" in (frame["waitDefault"] or {})]
    assert all(1 <= rid <= 12 for rid in behind)


def test_only_the_newest_runs_are_kept() -> None:
    feed = Feed(Source())
    ids = [feed.add_run(Traffic(seed=1, num_requests=1).records()) for _ in range(feed_module.MAX_RUNS + 1)]
    assert feed.run(ids[0]) is None
    assert feed.run(ids[-1]) is not None


def test_a_busy_engine_with_8192_blocks_costs_a_page_little() -> None:
    """64 requests at a time, one arriving every step or two: below 60 KB/s."""
    source = Source()
    traffic = Traffic(
        seed=6, num_requests=150, num_blocks=8192, block_size=16, max_num_seqs=64, max_num_batched_tokens=2048
    )
    for _ in range(60):
        traffic.add(prompt=tuple(range(300)), max_tokens=200)
    records = [traffic.step() for _ in range(240)]
    for record in records:
        assert record is not None
        source.ring.append(record)
    feed = Feed(source)
    busy = [record for record in records[100:] if record and len(record.num_tokens) >= 40]
    assert len(busy) > 100
    first = feed.answer(records[99].step if records[99] else 0, None)[0]
    size = len(feed.answer(first.newest - len(records[100:]), source.ring.epoch)[0].text)
    assert 60 * size / len(records[100:]) < 60_000  # bytes a second at 60 steps a second, before the socket packs them
    assert min(len(json.dumps(record.to_dict())) for record in busy) > 1500  # what whole records would have cost
