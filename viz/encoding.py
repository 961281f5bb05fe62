"""Step records as the small deltas that every open page is sent.

Owns the wire form, which `viz/static/wire.js` reads. Never knows sockets, clients or how often they ask. A record is
encoded once, against the block map and the record before it; the first one after a base is encoded in full. Holds
numbers and the record's own words only: nothing that a person typed is in a record.

One step, all keys but `s`, `t`, `d` left out where nothing is to say:

    s, t, d    step; when it began (s); how long it took (µs)
    k          1: in full, nothing before it is assumed but the block map; `c` and `o` then hold every value
    cfg        [policy, kv_layout, token_budget, max_num_seqs, num_blocks, block_size]
    pp, pd, ad pending_prefill, pending_decode, active_decode: {"=": ids} or {"-": gone, "+": appended}
    ap         active_prefill with its tokens: [id, n, id, n, …]; absent means none
    nt         tokens of decoding requests, where not 1: {id: n}
    pad, ina   padded rows {id: n}; rows of inactive slots
    c          stored tokens where not "before + tokens of this step": {id: n, or null for "not told"}
    o          answer lengths where not "decoding: one more, prefilling: none": {id: n, or null}
    w, wx, wd  reasons to wait: new ones {id: [reason, and `Wait`'s numbers in their order]}, gone ones; the default
    bt, rel, ca, un   block changes, in the record's own form
    m          [free, cached, active blocks, stored tokens, internal, external fragmentation in 1/10,000]
    n          [preemptions, evictions, prefix query tokens, prefix hit tokens, wasted slot-steps]
    e, ev      events; blocks evicted
    x          times of the step's parts (µs): schedule, batch, forward, sample, commit, publish
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

from engine.telemetry.record import EventKind, StepRecord, Wait
from engine.telemetry.ring import BlockMap


def dumps(value: Any) -> str:
    """Compact JSON; NaN and infinities never leave (a browser could not read them)."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def encode_base(base: BlockMap, previous: StepRecord | None = None) -> dict[str, Any]:
    """The state that a reader starts from: just after step `base.step`.

    `previous` is that step's record, for a reader who is not also sent the steps before the next one.
    """
    encoded = base.to_dict()
    if previous is not None:
        step = encode_step(previous, None, BlockMap())
        encoded["prev"] = {key: value for key, value in step.items() if key not in ("bt", "rel", "ca", "un", "e", "ev")}
    return encoded


def encode_step(record: StepRecord, previous: StepRecord | None, before: BlockMap) -> dict[str, Any]:
    """One record against the one before it (None: in full) and the block map just before it."""
    out: dict[str, Any] = {"s": record.step, "t": round(record.time_s, 5), "d": _micros(record.duration_s)}
    if previous is None:
        out["k"] = 1
    if previous is None or _config(record) != _config(previous):
        out["cfg"] = _config(record)
    for key, name in (("pp", "pending_prefill"), ("pd", "pending_decode"), ("ad", "active_decode")):
        delta = _list_delta(getattr(previous, name) if previous else None, getattr(record, name))
        if delta is not None:
            out[key] = delta
    _encode_work(out, record, before, in_full=previous is None)
    _encode_waiting(out, record, previous)
    _encode_blocks(out, record)
    _encode_figures(out, record, previous)
    return out


def encode_run(records: Sequence[StepRecord], base: BlockMap | None = None) -> dict[str, Any]:
    """A finished run as one answer of the feed; `base` is the block map before the first record, None an empty pool."""
    blocks = base.copy() if base else BlockMap()
    if base is None and records:
        first = records[0]
        blocks.num_blocks, blocks.block_size, blocks.step = first.num_blocks, first.block_size, first.step - 1
    encoded_base = encode_base(blocks.copy())
    steps: list[dict[str, Any]] = []
    previous = None
    for record in records:
        steps.append(encode_step(record, previous, blocks))
        blocks.apply(record)
        previous = record
    oldest = records[0].step if records else blocks.step + 1
    return {"epoch": "run", "oldest": oldest, "newest": blocks.step, "base": encoded_base, "steps": steps}


def _config(record: StepRecord) -> list[Any]:
    return [
        record.policy,
        record.kv_layout,
        record.token_budget,
        record.max_num_seqs,
        record.num_blocks,
        record.block_size,
    ]


def _list_delta(before: Sequence[int] | None, after: Sequence[int]) -> dict[str, list[int]] | None:
    if before is None:
        return {"=": list(after)}
    if tuple(before) == tuple(after):
        return None
    kept_ids, before_ids = set(after), set(before)
    gone = [rid for rid in before if rid not in kept_ids]
    kept = [rid for rid in before if rid in kept_ids]
    new = [rid for rid in after if rid not in before_ids]
    if kept + new != list(after) or len(gone) + len(new) >= len(after):
        return {"=": list(after)}
    delta = {}
    if gone:
        delta["-"] = gone
    if new:
        delta["+"] = new
    return delta


def _encode_work(out: dict[str, Any], record: StepRecord, before: BlockMap, in_full: bool) -> None:
    if record.active_prefill:
        out["ap"] = [n for rid in record.active_prefill for n in (rid, record.num_tokens.get(rid, 0))]
    decoding = {rid: record.num_tokens.get(rid, 0) for rid in record.active_decode}
    unusual = {rid: n for rid, n in decoding.items() if n != 1}
    if unusual:
        out["nt"] = unusual
    if record.padding:
        out["pad"] = dict(record.padding)
    if record.num_inactive_rows:
        out["ina"] = record.num_inactive_rows
    active = (*record.active_prefill, *record.active_decode)
    if in_full:
        computed: dict[int, int | None] = dict(record.computed)
        outputs: dict[int, int | None] = dict(record.outputs)
    else:
        told = {rid: before.computed.get(rid, 0) + record.num_tokens.get(rid, 0) for rid in active}
        computed = _exceptions(told, record.computed)
        lengths = {rid: before.requests.get(rid, {}).get("num_output_tokens", 0) + 1 for rid in record.active_decode}
        outputs = _exceptions(lengths, record.outputs)
    if computed:
        out["c"] = computed
    if outputs:
        out["o"] = outputs


def _exceptions(expected: Mapping[int, int], actual: Mapping[int, int]) -> dict[int, int | None]:
    wrong: dict[int, int | None] = {rid: n for rid, n in actual.items() if expected.get(rid) != n}
    wrong.update({rid: None for rid in expected if rid not in actual})
    return wrong


def _encode_waiting(out: dict[str, Any], record: StepRecord, previous: StepRecord | None) -> None:
    before: Mapping[int, Wait] = previous.waiting if previous else {}
    changed = {rid: _wait(wait) for rid, wait in record.waiting.items() if before.get(rid) != wait}
    gone = [rid for rid in before if rid not in record.waiting]
    if changed:
        out["w"] = changed
    if gone:
        out["wx"] = gone
    if previous is None or record.waiting_default != previous.waiting_default:
        out["wd"] = _wait(record.waiting_default) if record.waiting_default else None


def _wait(wait: Wait) -> list[Any]:
    values: list[Any] = list(astuple(wait))
    while values[-1] is None:
        values.pop()
    return values


def _encode_blocks(out: dict[str, Any], record: StepRecord) -> None:
    blocks = record.blocks
    if blocks.tables:
        out["bt"] = {rid: [start, list(ids)] for rid, (start, ids) in blocks.tables.items()}
    if blocks.released:
        out["rel"] = list(blocks.released)
    if blocks.cached:
        out["ca"] = [list(pair) for pair in blocks.cached]
    if blocks.uncached:
        out["un"] = list(blocks.uncached)


def _encode_figures(out: dict[str, Any], record: StepRecord, previous: StepRecord | None) -> None:
    memory = _memory(record)
    if previous is None or memory != _memory(previous):
        out["m"] = memory
    counters = _counters(record)
    if previous is None or counters != _counters(previous):
        out["n"] = counters
    evicted = [e.details["block"] for e in record.events if e.kind is EventKind.EVICTED and "block" in e.details]
    events = [e.to_dict() for e in record.events if e.kind is not EventKind.EVICTED]
    if events:
        out["e"] = list(_rounded(events))
    if evicted:
        out["ev"] = evicted
    t = record.times
    times = (t.schedule_s, t.batch_s, t.forward_s, t.sample_s, t.commit_s, t.publish_s)
    out["x"] = [_micros(value) for value in times]


def _memory(record: StepRecord) -> list[int]:
    return [
        record.num_free_blocks,
        record.num_cached_blocks,
        record.num_active_blocks,
        record.num_stored_tokens,
        round(record.internal_fragmentation * 10_000),
        round(record.external_fragmentation * 10_000),
    ]


def _counters(record: StepRecord) -> list[int]:
    return [
        record.num_preemptions,
        record.num_evictions,
        record.prefix_query_tokens,
        record.prefix_hit_tokens,
        record.wasted_slot_steps,
    ]


def _rounded(events: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for event in events:
        yield {name: round(value, 5) if isinstance(value, float) else value for name, value in event.items()}


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
