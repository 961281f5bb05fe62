"""What must hold of queue, running set and blocks between any two steps; `--check-invariants` asks after each.

Owns nothing and changes nothing. Costs time in the pool's size.
"""

from __future__ import annotations

from engine.scheduling.request import State
from engine.scheduling.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """Raise AssertionError, saying what is wrong, when an invariant of scheduler or blocks does not hold."""
    scheduler.kv.check()
    queued = {request.request_id for request in scheduler.queue}
    running = set(scheduler.running)
    assert len(queued) == len(scheduler.queue), "a request is in the queue twice"
    assert not queued & running, "a request waits and runs at once"
    assert queued | running == {request.request_id for request in scheduler.unfinished}, "a request is lost"
    for request in scheduler.unfinished:
        assert request.state is not State.FINISHED, "a finished request is still here"
        assert len(request.output_token_ids) < request.max_tokens, "an answer goes on past max_tokens"
        assert request.num_computed_tokens < request.num_tokens, "nothing is left to compute for the next token"
        is_holding = scheduler.kv.holds(request.request_id)
        assert is_holding == (request.request_id in running), "blocks and running do not agree"
        if request.request_id in queued:
            assert request.state is State.PENDING_PREFILL, "a request that waits for blocks is ready to decode"
            assert request.num_computed_tokens == 0, "tokens count as computed without a block"
    is_sorted = all(a.request_id < b.request_id for a, b in zip(scheduler.queue, scheduler.queue[1:], strict=False))
    assert is_sorted, "the queue is not in order of arrival"
    if not scheduler.running:
        assert scheduler.kv.num_active_blocks == 0, "blocks are owned although nobody runs"
