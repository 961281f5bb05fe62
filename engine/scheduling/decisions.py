"""Collects a step's decisions and their reasons while the scheduler makes them, and turns them into a record.

Owns nothing but the notes of one step. Never decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from engine.kv.layout import Admission, Changes, Shortage
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Request, State
from engine.telemetry.record import BlockChanges, Event, EventKind, StepRecord, StepTimes, Wait, WaitReason

if TYPE_CHECKING:
    from engine.scheduling.scheduler import Scheduler


class Decisions:
    """The notes of one step; made anew for the next one by `Scheduler.take_record`."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.waiting: dict[int, Wait] = {}
        self.waiting_default: Wait | None = None
        self.computed: dict[int, int] = {}
        self.pending_prefill: tuple[int, ...] = ()
        self.pending_decode: tuple[int, ...] = ()
        self.blocks = BlockChanges()

    def note_changes(self, changes: Changes) -> None:
        """Note what happened to blocks, after what was noted before."""
        self.blocks = merge_changes(self.blocks, changes.blocks)
        self.events.extend(Event(EventKind.EVICTED, None, {"block": block_id}) for block_id in changes.evicted)
        for copy in changes.copies:
            details = {"src": copy.src, "dst": copy.dst, "num_tokens": copy.num_tokens}
            self.events.append(Event(EventKind.COPIED, None, details))

    def pending(self, queue: Iterable[Request], running: Mapping[int, Request]) -> None:
        """Note who could run, as the step was planned."""
        prefilling = [rid for rid, request in running.items() if request.state is State.PENDING_PREFILL]
        self.pending_prefill = (*prefilling, *(request.request_id for request in queue))
        self.pending_decode = tuple(rid for rid, r in running.items() if r.state is State.PENDING_DECODE)

    def arrived(self, request: Request) -> None:
        """Note that a request was queued."""
        details: dict[str, object] = {
            "num_prompt_tokens": request.num_prompt_tokens,
            "max_tokens": request.max_tokens,
            "arrival_s": request.arrival_s,
        }
        if request.sibling_of is not None:
            details["sibling_of"] = request.sibling_of
        self.events.append(Event(EventKind.ARRIVED, request.request_id, details))

    def admitted(self, request: Request, admission: Admission, now_s: float) -> None:
        """Note that a request got a block table, and what it found there."""
        self.computed[request.request_id] = admission.num_cached_tokens
        details = {
            "cached_tokens": admission.num_cached_tokens,
            "shared_blocks": admission.num_shared_blocks,
            "queue_s": now_s - request.arrival_s,
            "is_resumed": request.num_preemptions > 0,
        }
        self.events.append(Event(EventKind.ADMITTED, request.request_id, details))

    def short_of_blocks(self, request_id: int, shortage: Shortage) -> None:
        """Note that a request waits for blocks, and how many."""
        reason = WaitReason.NO_RUN if shortage.is_fragmented else WaitReason.NO_BLOCKS
        self.waiting[request_id] = Wait(
            reason,
            shortage.needed_blocks,
            shortage.available_blocks,
            free_blocks=shortage.free_blocks,
            cached_blocks=shortage.cached_blocks or None,
            promised_blocks=shortage.promised_blocks or None,
            own_prefix_blocks=shortage.own_prefix_blocks or None,
        )

    def preempted(
        self, victim: Request, beneficiary: Request, lost_tokens: int, freed_blocks: int, available_blocks: int
    ) -> None:
        """Note who lost what for whom; `available_blocks` are those before, without the freed ones."""
        available_after = available_blocks + freed_blocks
        self.waiting[victim.request_id] = Wait(
            WaitReason.NO_BLOCKS, available_blocks=available_after, behind=beneficiary.request_id
        )
        details = {
            "for_request": beneficiary.request_id,
            "lost_tokens": lost_tokens,
            "freed_blocks": freed_blocks,
            "available_before": available_blocks,
            "available_after": available_after,
        }
        self.events.append(Event(EventKind.PREEMPTED, victim.request_id, details))

    def first_token(self, request: Request, now_s: float) -> None:
        """Note that the answer has begun."""
        self.events.append(Event(EventKind.FIRST_TOKEN, request.request_id, {"ttft_s": now_s - request.arrival_s}))

    def finished(self, request: Request) -> None:
        """Note a request's end, with the times that exist for it."""
        assert request.finished_s is not None
        details: dict[str, object] = {
            "reason": str(request.finish_reason),
            "num_prompt_tokens": request.num_prompt_tokens,
            "num_output_tokens": len(request.output_token_ids),
            "cached_tokens": request.num_cached_tokens,
            "num_preemptions": request.num_preemptions,
            "e2e_s": request.finished_s - request.arrival_s,
        }
        if request.first_scheduled_s is not None:
            details["queue_s"] = request.first_scheduled_s - request.arrival_s
        if request.first_token_s is not None and request.first_scheduled_s is not None:
            details["ttft_s"] = request.first_token_s - request.arrival_s
            details["prefill_s"] = request.first_token_s - request.first_scheduled_s
            details["decode_s"] = (request.last_token_s or request.first_token_s) - request.first_token_s
        if request.error is not None:
            details["error"] = request.error
        self.events.append(Event(EventKind.FINISHED, request.request_id, details))


def build_record(
    scheduler: Scheduler, plan: StepPlan, started_s: float, duration_s: float, times: StepTimes
) -> StepRecord:
    """The record of the step that was just committed; starts a new page of notes."""
    notes, scheduler.decisions = scheduler.decisions, Decisions()
    settings, kv = scheduler.settings, scheduler.kv
    notes.note_changes(kv.take_changes())  # what commit freed and published, after what plan took
    computed = notes.computed
    for item in plan.scheduled:
        computed[item.request_id] = item.request.num_computed_tokens
    num_slots_stored = kv.num_active_blocks * kv.block_size
    return StepRecord(
        step=plan.step,
        time_s=started_s,
        policy=settings.policy,
        kv_layout=settings.kv_layout,
        token_budget=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        num_blocks=kv.num_blocks,
        block_size=kv.block_size,
        pending_prefill=notes.pending_prefill,
        pending_decode=notes.pending_decode,
        active_prefill=tuple(item.request_id for item in plan.scheduled if not item.is_decode),
        active_decode=tuple(item.request_id for item in plan.scheduled if item.is_decode),
        num_tokens={item.request_id: len(item.token_ids) for item in plan.scheduled},
        padding={item.request_id: item.num_padding for item in plan.scheduled if item.num_padding},
        num_inactive_rows=plan.num_inactive_rows,
        computed=computed,
        outputs={item.request_id: len(item.request.output_token_ids) for item in plan.scheduled if item.samples},
        waiting=notes.waiting,
        waiting_default=notes.waiting_default,
        blocks=notes.blocks,
        num_free_blocks=kv.num_free_blocks,
        num_cached_blocks=kv.num_cached_blocks,
        num_active_blocks=kv.num_active_blocks,
        num_stored_tokens=kv.num_stored_tokens,
        internal_fragmentation=1 - kv.num_stored_tokens / num_slots_stored if num_slots_stored else 0.0,
        external_fragmentation=kv.external_fragmentation,
        num_preemptions=scheduler.num_preemptions,
        num_evictions=scheduler.num_evictions,
        prefix_query_tokens=scheduler.prefix_query_tokens,
        prefix_hit_tokens=scheduler.prefix_hit_tokens,
        wasted_slot_steps=scheduler.wasted_slot_steps,
        events=tuple(notes.events),
        times=times,
        duration_s=duration_s,
    )


def merge_changes(first: BlockChanges, then: BlockChanges) -> BlockChanges:
    """Two changes in a row as one, to be applied in the order that `BlockChanges` states."""
    tables = {rid: change for rid, change in first.tables.items() if rid not in then.released}
    for request_id, (start, ids) in then.tables.items():
        old_start, old_ids = tables.get(request_id, (start, ()))
        low = min(start, old_start)
        kept = old_ids[: start - old_start] if start > old_start else ()
        tables[request_id] = (low, (*kept, *ids))
    # A block that was published and forgotten again must not come back: `uncached` is applied before `cached`.
    forgotten = set(then.uncached)
    cached = [pair for pair in first.cached if pair[0] not in forgotten]
    return BlockChanges(
        tables=tables,
        released=tuple(dict.fromkeys((*first.released, *then.released))),
        cached=(*cached, *then.cached),
        uncached=(*first.uncached, *then.uncached),
    )
