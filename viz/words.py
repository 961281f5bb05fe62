"""The records' reasons and events in plain words, for the page's Python and, as JSON, for its browser code.

Owns every sentence that explains a decision. Never knows a record's layout: it is handed plain numbers and fills
templates. A template's `{name}` is a number, `{name|block}` a counted noun ("1 block", "7 blocks"), `{name|s}` a
time in seconds, `{name|rq}` a request by its letter. A part in square brackets is left out where a name in it is
missing: `needs {needed|block}[, {available} can be given]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engine.telemetry.record import Wait

WAIT_WORDS: Mapping[str, str] = {
    "no_slot": "no free slot: as many requests run as the engine allows[ ({slots})]",
    "no_blocks": "not enough KV memory[: its blocks were just taken for {behind|rq}]"
    "[: needs {needed_blocks|block}, only {available_blocks} can be given][; the pool has {free_blocks} free]"
    "[ and {cached_blocks} cached][, but the running requests still need {promised_blocks}]"
    "[, and {own_prefix_blocks} of the cached ones are its own prefix]",
    "no_run": "enough blocks are free[ ({free_blocks})], but not side by side[: needs {needed_blocks|block} in one "
    "unbroken run, the longest free run has {available_blocks}]",
    "no_budget": "this step's token budget is used up by others",
    "batch_closed": "the running static batch takes nobody in until its longest member ends",
    "cohort_forming": "a static batch is being formed: it waits a moment for others to arrive",
    "behind": "first come, first served[: {behind|rq} stands before it]",
    "sibling": "its prompt is just being computed by its sibling; it will share that work",
    "decode_turn": "this step only decodes; prompts get their turn in another step",
    "prefill_turn": "this step only reads prompts; answers go on in another step",
    "draining": "new settings need an empty pool: nobody is let in until the running requests have ended",
    "paused": "the engine is paused",
}
"""Why a request waits: a sentence that goes on from "C waits: "."""

WAIT_SHORT: Mapping[str, str] = {
    "no_slot": "no slot",
    "no_blocks": "no memory",
    "no_run": "no unbroken run",
    "no_budget": "no token budget",
    "batch_closed": "batch closed",
    "cohort_forming": "batch forming",
    "behind": "in line",
    "sibling": "sibling computes",
    "decode_turn": "decode's turn",
    "prefill_turn": "prefill's turn",
    "draining": "draining",
    "paused": "paused",
    "step_under_way": "the step under way",  # it came while a step ran; that one had to end first
}
"""The same in two words, for labels."""

EVENT_WORDS: Mapping[str, str] = {
    "arrived": "arrived with {num_prompt_tokens|token} of prompt[, may answer with up to {max_tokens}]",
    "admitted": "admitted after waiting {queue_s|s}[; {cached_tokens|token} of its prompt came from the prefix cache]",
    "first_token": "first token {ttft_s|s} after arrival",
    "preempted": "preempted[ to make room for {for_request|rq}]: lost the stored keys and values of "
    "{lost_tokens|token}[, gave back {freed_blocks|block}]"
    "[; free before: {available_before}, after: {available_after}]",
    "finished": "finished[ ({reason})][ with {num_output_tokens|token}][ after {e2e_s|s}][; {error}]",
    "evicted": "cached block {block} was given to someone else",
    "copied": "block {src} was copied to {dst} before writing, because others share it",
    "settings": "new settings took effect",
    "draining": "waits for the pool to empty before new settings take effect",
    "failed": "the step failed[: {error}]",
}
"""What happened: a sentence that goes on from "C " or "the engine "."""

FINISH_WORDS: Mapping[str, str] = {
    "stop": "it was done",
    "length": "its limit was reached",
    "abort": "stopped by its reader",
    "error": "error",
}

POLICY_WORDS: Mapping[str, tuple[str, str]] = {
    "static": ("static batching", "a batch is formed, padded, and runs until its longest member ends"),
    "mixed": (
        "continuous batching",
        "requests come and go at every step; prompts are read in chunks beside decoding",
    ),
    "decode_first": ("continuous, decode first", "one kind per step: decoding goes first until enough prompts wait"),
    "prefill_first": ("continuous, prefill first", "one kind per step: waiting prompts go first"),
}
LAYOUT_WORDS: Mapping[str, tuple[str, str]] = {
    "paged": ("paged memory", "blocks are handed out one at a time, anywhere in the pool"),
    "contiguous": ("contiguous memory", "each request reserves one unbroken run for prompt + longest answer"),
}

_PART = re.compile(r"\[([^\[\]]*)\]")
_FIELD = re.compile(r"\{(\w+)(?:\|(\w+))?\}")


def request_label(request_id: int) -> str:
    """The letters by which a person tells requests apart: 1 is A, 26 Z, 27 AA. The id 0 is its own digit."""
    if request_id < 1:
        return str(request_id)
    letters = ""
    while request_id > 0:
        request_id, rest = divmod(request_id - 1, 26)
        letters = chr(65 + rest) + letters
    return letters


def seconds(value: float) -> str:
    """A time as a person says it: `12 ms`, `1.25 s`, `14 s`."""
    if value < 0.0995:
        return f"{value * 1000:.0f} ms" if value >= 0.00095 else f"{value * 1000:.1f} ms"
    return f"{value:.2f} s" if value < 9.995 else f"{value:.0f} s"


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Put `values` into a template of this module; bracketed parts with a missing value are left out."""

    def field(match: re.Match[str]) -> str:
        value, kind = values.get(match[1]), match[2]
        if value is None:
            return "?"
        if kind == "s":
            return seconds(float(value))
        if kind == "rq":
            return request_label(int(value))
        if kind:
            return f"{value:,} {kind}" + ("" if value == 1 else "s")
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

    def part(match: re.Match[str]) -> str:
        known = all(values.get(name) is not None for name, _ in _FIELD.findall(match[1]))
        return match[1] if known else ""

    return _FIELD.sub(field, _PART.sub(part, template))


def wait_in_words(wait: Wait) -> str:
    """Why a request waits, with its numbers, going on from "waits: "."""
    return fill(WAIT_WORDS[wait.reason.value], wait.to_dict())


def as_json() -> dict[str, Any]:
    """Everything the browser code needs to say the same."""
    return {
        "wait": dict(WAIT_WORDS),
        "wait_short": dict(WAIT_SHORT),
        "event": dict(EVENT_WORDS),
        "finish": dict(FINISH_WORDS),
        "policy": {name: list(pair) for name, pair in POLICY_WORDS.items()},
        "layout": {name: list(pair) for name, pair in LAYOUT_WORDS.items()},
    }
