"""The step record: what one engine step did and why, frozen and free of tensors and text.

Owns the words of the telemetry: every reason and every event a page, a metric or a trace can speak of.
Never knows the scheduler or the cache that it describes; they fill it in. Nothing that a person typed is in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA_VERSION = 1


class WaitReason(StrEnum):
    """Why a request that could have used this step was not in it."""

    NO_SLOT = "no_slot"  # as many requests as allowed run, or hold keys and values
    NO_BLOCKS = "no_blocks"  # the pool cannot give what it needs
    NO_RUN = "no_run"  # contiguous: enough free blocks, but no unbroken run that is long enough
    NO_BUDGET = "no_budget"  # the step's token budget is used up
    BATCH_CLOSED = "batch_closed"  # static: the running cohort takes nobody in
    COHORT_FORMING = "cohort_forming"  # static: waiting a moment for others to arrive
    BEHIND = "behind"  # first come, first served: the one before it waits
    SIBLING = "sibling"  # n > 1: its prompt is being computed by its sibling
    DECODE_TURN = "decode_turn"  # this step decodes; one kind per step
    PREFILL_TURN = "prefill_turn"  # this step prefills; one kind per step
    DRAINING = "draining"  # a change of settings waits for the pool to empty
    PAUSED = "paused"


class EventKind(StrEnum):
    """What can happen to a request or to the engine in a step."""

    ARRIVED = "arrived"
    ADMITTED = "admitted"
    FIRST_TOKEN = "first_token"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    EVICTED = "evicted"
    COPIED = "copied"  # copy-on-write of a shared, partly filled block
    SETTINGS = "settings"  # new settings took effect
    DRAINING = "draining"
    FAILED = "failed"  # the step raised; its requests ended with an error


@dataclass(frozen=True, slots=True)
class Wait:
    """One request's reason to wait, with the numbers behind it (those that apply)."""

    reason: WaitReason
    needed_blocks: int | None = None
    available_blocks: int | None = None
    """Free blocks plus cached ones that could be evicted, less those that running requests will need next; for NO_RUN
    the longest free run."""
    behind: int | None = None
    """The request that stands before it; for NO_BLOCKS the one that its blocks were just taken for."""
    free_blocks: int | None = None
    cached_blocks: int | None = None
    """Of NO_BLOCKS and NO_RUN: what there was when the blocks were asked for."""
    promised_blocks: int | None = None
    """Of those, blocks that running requests will need next: all for their tokens so far, one each to grow into."""
    own_prefix_blocks: int | None = None
    """Of the cached ones, those that hold its own prefix: it would use them, not have them evicted."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without what does not apply."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `details` holds plain numbers and words; docs of each kind:

    arrived: num_prompt_tokens, max_tokens, arrival_s, sibling_of (n > 1)
    admitted: cached_tokens, queue_s, shared_blocks, is_resumed
    first_token: ttft_s
    preempted: for_request, lost_tokens, freed_blocks, available_before, available_after
    finished: reason, num_output_tokens, ttft_s, e2e_s, queue_s, prefill_s, decode_s (those that exist), error (words)
    evicted: block;  copied: src, dst, num_tokens
    settings: the new values;  draining: the values waited for;  failed: error (the kind of failure, in words)
    """

    kind: EventKind
    request_id: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON: `type`, `request_id` where there is one, and the details beside them."""
        head: dict[str, Any] = {"type": self.kind.value}
        if self.request_id is not None:
            head["request_id"] = self.request_id
        return head | dict(self.details)


@dataclass(frozen=True, slots=True)
class BlockChanges:
    """How the block map changed in one step, complete and minimal: with it and the map before, the map after is known.

    `tables`: per request whose block table changed, (index of the first changed entry, the block ids from there on).
    `released`: requests that own no block any more. `cached`: (block, first 8 hex digits of its prefix digest) that
    can now be found by prefix. `uncached`: blocks that no longer can. A block in no table is cached when it can be
    found by prefix, else free; one in several tables is shared. Apply released, tables, uncached, cached in this order.
    """

    tables: Mapping[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    released: tuple[int, ...] = ()
    cached: tuple[tuple[int, str], ...] = ()
    uncached: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds spent in the parts of one step. `publish_s` is that of the record before this one."""

    schedule_s: float = 0.0
    batch_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0
    commit_s: float = 0.0
    publish_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step. The lists hold request ids as they stood when the step was planned: `active_prefill` and
    `active_decode` are the parts of `pending_prefill` and `pending_decode` that ran in it."""

    step: int
    time_s: float
    """When the step began, on the engine's monotonic clock, counted from the engine's start."""
    policy: str
    kv_layout: str
    token_budget: int
    max_num_seqs: int
    num_blocks: int
    block_size: int

    pending_prefill: tuple[int, ...] = ()
    pending_decode: tuple[int, ...] = ()
    active_prefill: tuple[int, ...] = ()
    active_decode: tuple[int, ...] = ()
    num_tokens: Mapping[int, int] = field(default_factory=dict)
    """Tokens computed in this step, per active request."""
    padding: Mapping[int, int] = field(default_factory=dict)
    """Padded rows computed for a request (static)."""
    num_inactive_rows: int = 0
    """Rows computed for slots of a static batch whose request has ended."""
    computed: Mapping[int, int] = field(default_factory=dict)
    """Tokens with stored keys and values after the step, for each request for which that changed."""
    outputs: Mapping[int, int] = field(default_factory=dict)
    """Length of the answer after the step, for each request that got a token."""

    waiting: Mapping[int, Wait] = field(default_factory=dict)
    """Reasons of those that waited, where they differ from `waiting_default`."""
    waiting_default: Wait | None = None
    """The reason of every request in pending_prefill that is neither active nor in `waiting`."""

    blocks: BlockChanges = field(default_factory=BlockChanges)
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_active_blocks: int = 0
    num_stored_tokens: int = 0
    """Tokens stored in active blocks, a shared block's counted once."""
    internal_fragmentation: float = 0.0
    external_fragmentation: float = 0.0

    num_preemptions: int = 0
    num_evictions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    wasted_slot_steps: int = 0
    """The five counters run from the engine's start."""

    events: tuple[Event, ...] = ()
    times: StepTimes = field(default_factory=StepTimes)
    duration_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON (keys of mappings are request ids as strings once serialised)."""
        return {
            "step": self.step,
            "time_s": round(self.time_s, 6),
            "policy": self.policy,
            "kv_layout": self.kv_layout,
            "token_budget": self.token_budget,
            "max_num_seqs": self.max_num_seqs,
            "num_blocks": self.num_blocks,
            "block_size": self.block_size,
            "pending_prefill": list(self.pending_prefill),
            "pending_decode": list(self.pending_decode),
            "active_prefill": list(self.active_prefill),
            "active_decode": list(self.active_decode),
            "num_tokens": dict(self.num_tokens),
            "padding": dict(self.padding),
            "num_inactive_rows": self.num_inactive_rows,
            "computed": dict(self.computed),
            "outputs": dict(self.outputs),
            "waiting": {rid: wait.to_dict() for rid, wait in self.waiting.items()},
            "waiting_default": self.waiting_default.to_dict() if self.waiting_default else None,
            "block_tables": {rid: [start, list(ids)] for rid, (start, ids) in self.blocks.tables.items()},
            "released": list(self.blocks.released),
            "cached": [list(pair) for pair in self.blocks.cached],
            "uncached": list(self.blocks.uncached),
            "num_free_blocks": self.num_free_blocks,
            "num_cached_blocks": self.num_cached_blocks,
            "num_active_blocks": self.num_active_blocks,
            "num_stored_tokens": self.num_stored_tokens,
            "internal_fragmentation": round(self.internal_fragmentation, 6),
            "external_fragmentation": round(self.external_fragmentation, 6),
            "num_preemptions": self.num_preemptions,
            "num_evictions": self.num_evictions,
            "prefix_query_tokens": self.prefix_query_tokens,
            "prefix_hit_tokens": self.prefix_hit_tokens,
            "wasted_slot_steps": self.wasted_slot_steps,
            "events": [event.to_dict() for event in self.events],
            "times": {name: round(value, 7) for name, value in asdict(self.times).items()},
            "duration_s": round(self.duration_s, 6),
        }
