"""The engine's state between two steps as one plain value, for `GET /engine/state` and for the page.

Taken in the engine thread after each step; never changed afterwards.
"""

from __future__ import annotations

from typing import Any

from engine.engine import Engine
from engine.scheduling.request import State
from engine.telemetry.record import StepRecord, Wait


def snapshot(engine: Engine, record: StepRecord | None) -> dict[str, Any]:
    """The contract's state keys, `queue` (ids that hold no keys and values) and what a drain waits for."""
    scheduler, settings, kv = engine.scheduler, engine.settings, engine.scheduler.kv
    queue = [request.request_id for request in scheduler.queue]
    running = scheduler.running.values()
    num_active_slots = kv.num_active_blocks * kv.block_size
    pending = engine.pending_settings
    return {
        "step": engine.num_steps,
        "policy": settings.policy,
        "decode_selection": settings.decode_selection,
        "kv_layout": settings.kv_layout,
        "prefix_caching": settings.prefix_caching,
        "block_size": kv.block_size,
        "num_blocks": kv.num_blocks,
        "num_free_blocks": kv.num_free_blocks,
        "num_cached_blocks": kv.num_cached_blocks,
        "num_active_blocks": kv.num_active_blocks,
        "pending_prefill": [r.request_id for r in running if r.state is State.PENDING_PREFILL] + queue,
        "pending_decode": [r.request_id for r in running if r.state is State.PENDING_DECODE],
        "active_prefill": list(record.active_prefill) if record else [],
        "active_decode": list(record.active_decode) if record else [],
        "queue": queue,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "max_model_len": settings.context_limit,
        "max_queue": settings.max_queue,
        "internal_fragmentation": round(1 - kv.num_stored_tokens / num_active_slots, 6) if num_active_slots else 0.0,
        "external_fragmentation": round(kv.external_fragmentation, 6),
        "num_preemptions": scheduler.num_preemptions,
        "draining": pending is not None,
        "draining_for": {
            name: getattr(pending, name)
            for name in ("policy", "kv_layout", "block_size", "num_blocks", "prefix_caching")
            if getattr(pending, name) != getattr(settings, name)
        }
        if pending is not None
        else {},
    }


def wait_reason(record: StepRecord | None, request_id: int) -> Wait | None:
    """Why a request was not in the step of `record`; None when it was, or was not here."""
    if record is None or request_id in record.num_tokens:
        return None
    if request_id in record.waiting:
        return record.waiting[request_id]
    return record.waiting_default if request_id in record.pending_prefill else None
