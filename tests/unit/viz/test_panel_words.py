"""Reasons in plain words: every reason has some, and the browser says the same as Python."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from engine.telemetry.record import EventKind, Wait, WaitReason
from tests.unit.viz.javascript import run_js
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
        (Wait(WaitReason.NO_BLOCKS, 1), "not enough KV memory: needs 1 block"),
        (Wait(WaitReason.BEHIND, behind=27), "first come, first served: AA stands before it"),
        (Wait(WaitReason.BEHIND), "first come, first served"),
        (Wait(WaitReason.PAUSED), "the engine is paused"),
    ],
)
def test_waits_in_words(wait: Wait, text: str) -> None:
    assert words.wait_in_words(wait) == text


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
