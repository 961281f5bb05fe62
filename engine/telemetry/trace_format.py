"""A trace's lines: what each says, written and read.

Owns the schema, version `SCHEMA_VERSION`. A trace is JSON lines:

    {"trace": "tiny-vllm", "version": 1, "epoch", "start_s", "settings": {…}, "model": {…}}     the first line
    {"base": {…}}                the block map before the first step, where that is not step 1
    {"step": {…}, "inputs": […], "tokens": {…}}                     one step: its record and its journal entry
    {"end": "why nothing follows"}                                  the last line, if recording ended in order

A record's empty fields are left out, and so a field that came later (the counts of a `Wait`) is one that an older trace
leaves out: it needs no new version. No line holds a token or a text that somebody typed: prompts and answers are
numbers that say who shares a prefix with whom (`engine.telemetry.prefix_numbers`), and the digests of prefixes begin
with a secret of the engine's own (`engine.kv.prefix_index`). Never knows files.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.telemetry import checked
from engine.telemetry.checked import TraceError, by_id, number, pair, plains, text, whole, wholes, word
from engine.telemetry.journal import Abort, Arrival, Change, Entry, Input
from engine.telemetry.record import (
    SCHEMA_VERSION,
    BlockChanges,
    Event,
    EventKind,
    StepRecord,
    StepTimes,
    Wait,
    WaitReason,
)
from engine.telemetry.ring import BlockMap

NAME = "tiny-vllm"
MAX_BLOCKS = 10_000_000


@dataclass(frozen=True, slots=True)
class Header:
    """The first line: which run this is. `start_s` is the engine's clock at its start; `settings` its first ones."""

    epoch: str
    start_s: float
    settings: Mapping[str, Any]
    model: Mapping[str, Any] = field(default_factory=dict)
    version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of a trace."""

    record: StepRecord
    entry: Entry


# -- writing -----------------------------------------------------------------------------------------------------------


def header_line(header: Header) -> str:
    """The first line."""
    rest = {"epoch": header.epoch, "start_s": header.start_s, "settings": header.settings, "model": header.model}
    return _dumps({"trace": NAME, "version": header.version, **rest})


def base_line(base: BlockMap) -> str:
    """The block map before the first step."""
    return _dumps({"base": base.to_dict()})


def step_line(record: StepRecord, entry: Entry | None) -> str:
    """One step."""
    raw = record.to_dict()
    raw["time_s"] = record.time_s  # unrounded: the wait of a static cohort is decided by it
    line: dict[str, Any] = {"step": {name: value for name, value in raw.items() if value not in ([], {}, None)}}
    if entry is not None and entry.inputs:
        line["inputs"] = [_input(item) for item in entry.inputs]
    if entry is not None and entry.tokens:
        line["tokens"] = entry.tokens
    return _dumps(line)


def end_line(why: str) -> str:
    """The last line."""
    return _dumps({"end": why})


def _input(item: Input) -> dict[str, Any]:
    name = {Arrival: "arrival", Abort: "abort", Change: "change"}[type(item)]
    return {"type": name} | {key: value for key, value in dataclasses.asdict(item).items() if value is not None}


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


# -- reading -----------------------------------------------------------------------------------------------------------


def parse_header(line: bytes) -> Header:
    """The first line. Raises TraceError for anything but a trace of this version."""
    raw = checked.parse_object(line)
    if raw.get("trace") != NAME:
        raise TraceError("this is no trace of this engine (its first line does not say so)")
    if raw.get("version") != SCHEMA_VERSION:
        raise TraceError(f"it has version {checked.plain(raw.get('version'))}, and this program reads {SCHEMA_VERSION}")
    values = checked.fields(raw, {"epoch": word, "start_s": number, "settings": plains, "model": plains})
    checked.require(values, "epoch", "start_s", "settings")
    return Header(**values)


def parse_line(line: bytes) -> TraceStep | BlockMap | str:
    """Any line after the first: a step, the base, or the words of the end. Raises TraceError."""
    raw = checked.parse_object(line)
    if "step" in raw:
        record = _record(checked.mapping(raw["step"]))
        inputs = tuple(_read_input(item) for item in checked.listed(raw.get("inputs", [])))
        return TraceStep(record, Entry(record.step, inputs, by_id(whole)(raw.get("tokens", {}))))
    if "base" in raw:
        return _base(checked.mapping(raw["base"]))
    if "end" in raw:
        return text(raw["end"])
    raise TraceError("expected a step, a base or an end")


def _record(raw: dict[str, Any]) -> StepRecord:
    values = checked.fields(raw, _RECORD)
    checked.require(values, "step", "time_s", "policy", "kv_layout", "token_budget", "max_num_seqs", "num_blocks")
    checked.require(values, "block_size")
    changes = checked.fields(raw, _CHANGES)
    tables = changes.pop("block_tables", {})
    record = StepRecord(**values, blocks=BlockChanges(tables=tables, **changes))
    used = [block for _, ids in record.blocks.tables.values() for block in ids]
    used += [block for block, _ in record.blocks.cached]  # what is uncached may be of the pool before
    _check_pool(record.num_blocks, record.block_size, used)
    return record


def _base(raw: dict[str, Any]) -> BlockMap:
    values = checked.fields(raw, _BASE)
    tables = {request_id: list(ids) for request_id, ids in values.pop("block_tables", {}).items()}
    base = BlockMap(**values, tables=tables)
    _check_pool(base.num_blocks, base.block_size, [*base.cached, *(block for ids in tables.values() for block in ids)])
    return base


def _check_pool(num_blocks: int, block_size: int, used: list[int]) -> None:
    if not 1 <= num_blocks <= MAX_BLOCKS or not 1 <= block_size <= MAX_BLOCKS:
        raise TraceError(f"a pool of {num_blocks} blocks of {block_size} tokens cannot be")
    if used and max(used) >= num_blocks:
        raise TraceError(f"block {max(used)} is outside the pool of {num_blocks} blocks")


def _event(value: Any) -> Event:
    raw = dict(checked.mapping(value))
    kind = _choice(EventKind)(raw.pop("type", None))
    request_id = whole(raw.pop("request_id")) if "request_id" in raw else None
    return Event(kind, request_id, plains(raw))


def _wait(value: Any) -> Wait:
    raw = checked.fields(checked.mapping(value), _WAIT)
    checked.require(raw, "reason")
    return Wait(**raw)


def _times(value: Any) -> StepTimes:
    return StepTimes(**checked.fields(checked.mapping(value), dict.fromkeys(_TIMES, number)))


def _read_input(value: Any) -> Input:
    raw = checked.mapping(value)
    kind = raw.get("type")
    if kind == "arrival":
        values = checked.fields(raw, _ARRIVAL)
        checked.require(values, "request_id", "prompt", "max_tokens", "arrival_s")
        arrival = Arrival(**values)
        if not 1 <= arrival.num_prompt_tokens <= checked.MAX_ITEMS:
            raise TraceError(f"a prompt of {arrival.num_prompt_tokens} tokens cannot be")
        return arrival
    if kind == "abort":
        values = checked.fields(raw, {"request_id": whole, "reason": word})
        checked.require(values, "request_id", "reason")
        return Abort(**values)
    if kind == "change":
        return Change(plains(raw.get("settings")))
    raise TraceError("an input must be an arrival, an abort or a change")


def _choice(kind: Any) -> checked.Reader[Any]:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise TraceError(f"{checked.plain(value)!r} is none of {', '.join(kind)}") from None

    return read


def _many(item: checked.Reader[Any]) -> checked.Reader[tuple[Any, ...]]:
    return lambda value: tuple(item(entry) for entry in checked.listed(value))


def _cached(value: Any) -> dict[int, str]:
    return dict(_many(pair(whole, word))(value))


_TIMES = [item.name for item in dataclasses.fields(StepTimes)]
_WAIT: dict[str, checked.Reader[Any]] = {
    "reason": _choice(WaitReason),
    **{item.name: whole for item in dataclasses.fields(Wait) if item.name != "reason"},
}
_ARRIVAL = {
    "request_id": whole,
    "prompt": _many(pair(whole, whole)),
    "max_tokens": whole,
    "arrival_s": number,
    "sibling_of": whole,
}
_BASE: dict[str, checked.Reader[Any]] = {
    "step": whole,
    "num_blocks": whole,
    "block_size": whole,
    "block_tables": by_id(wholes),
    "computed": by_id(whole),
    "cached": _cached,
    "requests": by_id(plains),
    "prefix_caching": checked.yes_or_no,
}
_CHANGES: dict[str, checked.Reader[Any]] = {
    "block_tables": by_id(pair(whole, wholes)),
    "released": wholes,
    "cached": _many(pair(whole, word)),
    "uncached": wholes,
}
_RECORD: dict[str, checked.Reader[Any]] = {
    **dict.fromkeys(("step", "token_budget", "max_num_seqs", "num_blocks", "block_size", "num_inactive_rows"), whole),
    **dict.fromkeys(("time_s", "duration_s", "internal_fragmentation", "external_fragmentation"), number),
    **dict.fromkeys(("policy", "kv_layout"), word),
    **dict.fromkeys(("pending_prefill", "pending_decode", "active_prefill", "active_decode"), wholes),
    **dict.fromkeys(("num_tokens", "padding", "computed", "outputs"), by_id(whole)),
    **dict.fromkeys(("num_free_blocks", "num_cached_blocks", "num_active_blocks", "num_stored_tokens"), whole),
    **dict.fromkeys(("num_preemptions", "num_evictions", "prefix_query_tokens", "prefix_hit_tokens"), whole),
    "wasted_slot_steps": whole,
    "waiting": by_id(_wait),
    "waiting_default": _wait,
    "events": _many(_event),
    "times": _times,
}
