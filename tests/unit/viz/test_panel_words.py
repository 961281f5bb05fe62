"""Reasons in plain words: every reason has some, and the browser says the same as Python."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from engine.telemetry.record import EventKind, Wait, WaitReason
from tests.unit.viz.javascript import run_js
from tests.unit.viz.recorded import Traffic
from viz import words

ALL = {
    "needed_blocks": 7,
    "available_blocks": 1,
    "behind": 28,
    "num_prompt_tokens": 1200,
    "max_tokens": 1,
    "queue_s": 0.0123,
    "cached_tokens": 0,
    "ttft_s": 1.5,
    "for_request": 2,
    "lost_tokens": 1,
    "freed_blocks": 3,
    "available_before": 0,
    "available_after": 3,
    "reason": "its limit was reached",
    "num_output_tokens": 12345,
    "e2e_s": 61.2,
    "error": "no",
    "block": 4096,
    "src": 1,
    "dst": 2,
    "slots": 4,
    "free_blocks": 1,
    "cached_blocks": 11,
    "promised_blocks": 12,
    "own_prefix_blocks": 2,
}
"""A value for every name that a template may hold."""


def test_every_reason_and_every_event_has_words() -> None:
    assert set(words.WAIT_WORDS) == {reason.value for reason in WaitReason}
    assert set(words.WAIT_WORDS) <= set(words.WAIT_SHORT)
    assert set(words.EVENT_WORDS) == {kind.value for kind in EventKind}
    assert set(words.POLICY_WORDS) == {"static", "mixed", "decode_first", "prefill_first"}
    assert set(words.LAYOUT_WORDS) == {"paged", "contiguous"}


def test_templates_name_nothing_unknown() -> None:
    for template in [*words.WAIT_WORDS.values(), *words.EVENT_WORDS.values()]:
        assert set(re.findall(r"\{(\w+)", template)) <= set(ALL), template


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        (Wait(WaitReason.NO_BLOCKS, 7, 5), "not enough KV memory: needs 7 blocks, only 5 can be given"),
        (Wait(WaitReason.NO_BLOCKS), "not enough KV memory"),
        (
            Wait(WaitReason.NO_BLOCKS, available_blocks=11, behind=1),  # just preempted
            "not enough KV memory: its blocks were just taken for A",
        ),
        (
            Wait(WaitReason.NO_BLOCKS, 10, 0, free_blocks=1, cached_blocks=11, promised_blocks=12),
            "not enough KV memory: needs 10 blocks, only 0 can be given; the pool has 1 free and 11 cached, but the "
            "running requests still need 12",
        ),
        (
            Wait(WaitReason.NO_BLOCKS, 3, 1, free_blocks=1, cached_blocks=4, own_prefix_blocks=4),
            "not enough KV memory: needs 3 blocks, only 1 can be given; the pool has 1 free and 4 cached, and 4 of the "
            "cached ones are its own prefix",
        ),
        (
            Wait(WaitReason.NO_RUN, 3, 2, free_blocks=5),
            "enough blocks are free (5), but not side by side: needs 3 blocks in one unbroken run, the longest free "
            "run has 2",
        ),
        (Wait(WaitReason.BEHIND, behind=27), "first come, first served: AA stands before it"),
        (Wait(WaitReason.BEHIND), "first come, first served"),
        (Wait(WaitReason.PAUSED), "the engine is paused"),
    ],
)
def test_waits_in_words(wait: Wait, text: str) -> None:
    assert words.wait_in_words(wait) == text


@pytest.mark.parametrize("settings", [{}, {"kv_layout": "contiguous"}, {"policy": "prefill_first"}])
def test_no_record_leaves_a_question_mark(settings: dict[str, str]) -> None:
    """Whatever a real run's records say can be said in full, right after a preemption too."""
    reasons: set[str] = set()
    for seed in range(4):
        for record in Traffic(seed, num_blocks=20, **settings).records():
            waits = [*record.waiting.values(), *([record.waiting_default] if record.waiting_default else [])]
            events = [words.fill(words.EVENT_WORDS[event.kind], event.to_dict()) for event in record.events]
            assert [said for said in (*map(words.wait_in_words, waits), *events) if "?" in said] == []
            reasons |= {wait.reason for wait in waits} | {event.kind for event in record.events}
    assert WaitReason.NO_BLOCKS in reasons
    assert (EventKind.PREEMPTED in reasons) == ("kv_layout" not in settings)


def test_who_stands_behind_somebody_is_in_line_whatever_the_first_waits_for() -> None:
    """A record gives all in the queue the first one's reason, as long as memory is not it: chips must not flicker."""
    seen = run_js(
        """
        const { waitOf } = await load("wire.js");
        const frame = (waitDefault, waiting = []) => (
            { tokens: new Map([[1, 1]]), pendingPrefill: [2, 3, 4], waitDefault, waiting: new Map(waiting) });
        const frames = [frame({ reason: "no_slot" }), frame({ reason: "no_budget" }),
                        frame({ reason: "behind", behind: 2 }, [[2, { reason: "no_blocks" }]]),
                        frame({ reason: "no_slot" }, [[2, { reason: "sibling", behind: 1 }]]),
                        frame({ reason: "batch_closed" }), frame({ reason: "paused" })];
        return frames.map((f) => [1, 2, 3, 4, 5].map((id) => waitOf(f, id)).map((w) => w && [w.reason, w.behind ?? 0]));
        """
    )
    assert seen == [
        [None, ["no_slot", 0], ["behind", 2], ["behind", 2], None],
        [None, ["no_budget", 0], ["behind", 2], ["behind", 2], None],
        [None, ["no_blocks", 0], ["behind", 2], ["behind", 2], None],
        [None, ["sibling", 1], ["no_slot", 0], ["behind", 3], None],
        [None, ["batch_closed", 0], ["batch_closed", 0], ["batch_closed", 0], None],
        [None, ["paused", 0], ["paused", 0], ["paused", 0], None],
    ]


def test_labels() -> None:
    assert [words.request_label(n) for n in (1, 2, 26, 27, 52, 53, 702, 703, 0)] == [
        "A", "B", "Z", "AA", "AZ", "BA", "ZZ", "AAA", "0",
    ]  # fmt: skip


def test_the_browser_says_the_same() -> None:
    templates = [*words.WAIT_WORDS.values(), *words.EVENT_WORDS.values(), "[a{none} b]c", "{x|s} {x}", "plain"]
    cases = [ALL, {}, {"needed_blocks": 1000, "x": 0.5}, {"queue_s": 0.0, "cached_tokens": 1, "block": 0}]
    times = [0, 0.0001, 0.00094, 0.00096, 0.0123, 0.0994, 0.0996, 0.1, 1, 1.005, 9.99, 9.996, 100.4]
    ids = [0, 1, 26, 27, 52, 702, 703, 20000]
    seen = run_js(
        """
        const { fill, label, seconds } = await load("words.js");
        return { filled: given.templates.map((t) => given.cases.map((values) => fill(t, values))),
                 times: given.times.map(seconds), labels: given.ids.map(label) };
        """,
        {"templates": templates, "cases": cases, "times": times, "ids": ids},
    )
    assert seen["filled"] == [[words.fill(template, values) for values in cases] for template in templates]
    assert seen["times"] == [words.seconds(value) for value in times]
    assert seen["labels"] == [words.request_label(value) for value in ids]


def test_a_wait_has_no_field_the_words_cannot_say() -> None:
    assert {field.name for field in fields(Wait)} - {"reason"} <= set(ALL)
