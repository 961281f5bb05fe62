"""The challenges' checks: pure functions of step records that know whether it was done, and say so with numbers.

Owns what counts as done. Never knows who made the records: the laboratory, the live engine or a trace.
"""

from __future__ import annotations

from engine.telemetry.figures import figures_of, token_gaps
from engine.telemetry.record import EventKind, WaitReason
from viz.lessons.lesson import Attempt, Records, Verdict

MIN_SPARED_ROWS = 20_000
MAX_WASTE = 0.05
FEW_SLOTS = 2
MAX_GAP_S = 0.0125
MAX_FIRST_TOKEN_S = 0.2
MAX_CONTIGUOUS_BLOCKS = 32
MIN_HIT_RATE = 0.6
LARGE_BLOCK = 64


def first_step_outweighs(attempt: Attempt) -> Verdict:
    """Prefill vs decode: one step computes more tokens than all that follow it."""
    tokens = [sum(record.num_tokens.values()) for record in attempt.records]
    most = max(tokens, default=0)
    rest = sum(tokens[tokens.index(most) + 1 :]) if tokens else 0
    return _verdict(most > rest > 0, f"the largest step computed {most} tokens, all that followed it {rest}")


def cache_spares(attempt: Attempt) -> Verdict:
    """The KV cache: rows that were not computed because their keys and values were kept."""
    spared = sum(sum(record.computed.values()) - sum(record.num_tokens.values()) for record in attempt.records)
    return _verdict(spared >= MIN_SPARED_ROWS, f"the cache has spared {spared:,} rows ({MIN_SPARED_ROWS:,} wanted)")


def static_wastes_little(attempt: Attempt) -> Verdict:
    """Padding and masks: hardly any waste, and still static."""
    is_static = all(record.policy == "static" for record in attempt.records)
    waste = 1 - figures_of(attempt.records).utilization
    if not is_static:
        return Verdict(False, "Not yet: that was not static batching all along")
    return _verdict(waste < MAX_WASTE, f"{waste:.0%} of all rows were padding or inactive slots (under 5% wanted)")


def few_slots_suffice(attempt: Attempt) -> Verdict:
    """Continuous batching: as fast as the static batch, with half its slots."""
    steps, wanted = _num_steps(attempt.records), _num_steps(attempt.reference)
    slots = max(record.max_num_seqs for record in attempt.records)
    words = f"{steps} steps on {slots} slots (the static batch took {wanted} on 4; use {FEW_SLOTS} or fewer)"
    return _verdict(steps <= wanted and slots <= FEW_SLOTS, words)


def first_tokens_twice_as_soon(attempt: Attempt) -> Verdict:
    """pending_decode: half the p95 TTFT of the reference, and at least 95% of its tokens per second."""
    ours, theirs = figures_of(attempt.records), figures_of(attempt.reference)
    assert ours.ttft_p95_s is not None
    assert theirs.ttft_p95_s is not None
    speed = ours.output_tokens_per_s / theirs.output_tokens_per_s
    words = (
        f"p95 TTFT {1000 * ours.ttft_p95_s:.0f} ms (half of {1000 * theirs.ttft_p95_s:.0f} ms wanted), "
        f"{speed:.0%} of the tokens per second (95% wanted)"
    )
    return _verdict(2 * ours.ttft_p95_s <= theirs.ttft_p95_s and speed >= 0.95, words)


def nobody_stutters(attempt: Attempt) -> Verdict:
    """Chunked prefill: short gaps for those who decode, and the long prompt not kept waiting for ever."""
    gap = max((gap for gaps in token_gaps(attempt.records).values() for gap in gaps), default=0.0)
    longest = max(_arrivals(attempt.records).items(), key=lambda item: item[1])[0]
    ttft = _first_token_s(attempt.records).get(longest, float("inf"))
    words = (
        f"longest gap {1000 * gap:.1f} ms ({1000 * MAX_GAP_S:g} ms or less wanted), first token of the long prompt "
        f"after {1000 * ttft:.0f} ms ({1000 * MAX_FIRST_TOKEN_S:g} ms or less wanted)"
    )
    return _verdict(0 < gap <= MAX_GAP_S and ttft <= MAX_FIRST_TOKEN_S, words)


def nobody_waits_for_memory(attempt: Attempt) -> Verdict:
    """Fragmentation: contiguous memory with just enough blocks that nobody waits for any."""
    if any(record.kv_layout != "contiguous" for record in attempt.records):
        return Verdict(False, "Not yet: that was not contiguous memory all along")
    reasons = (WaitReason.NO_BLOCKS, WaitReason.NO_RUN)
    waits = sum(wait.reason in reasons for record in attempt.records for wait in record.waiting.values())
    blocks = max(record.num_blocks for record in attempt.records)
    peak = max(record.num_active_blocks for record in attempt.reference) if attempt.reference else 0
    words = (
        f"somebody waited for memory in {waits} steps, with {blocks} blocks ({MAX_CONTIGUOUS_BLOCKS} or fewer wanted)"
    )
    if peak:
        words += f"; the run above never owned more than {peak}"
    return _verdict(not waits and blocks <= MAX_CONTIGUOUS_BLOCKS, words)


def paged_loses(attempt: Attempt) -> Verdict:
    """Paging: the same requests take longer with paged memory than with contiguous."""
    paged, contiguous = figures_of(attempt.records), figures_of(attempt.reference)
    words = (
        f"paged took {paged.makespan_s:.2f} s with {paged.num_preemptions} preemptions, "
        f"contiguous {contiguous.makespan_s:.2f} s"
    )
    all_answered = paged.num_finished == contiguous.num_finished
    return _verdict(paged.makespan_s > contiguous.makespan_s and all_answered, words)


def much_is_shared(attempt: Attempt) -> Verdict:
    """Prefix sharing: a good hit rate with large blocks."""
    asked = sum(_arrivals(attempt.records).values())
    hits = sum(
        int(event.details.get("cached_tokens", 0))
        for record in attempt.records
        for event in record.events
        if event.kind is EventKind.ADMITTED and not event.details.get("is_resumed")
    )
    rate = hits / asked if asked else 0.0
    size = max((record.block_size for record in attempt.records), default=0)
    words = f"{rate:.0%} of the prompts' tokens were found (60% wanted) in blocks of {size} (more than 64 wanted)"
    return _verdict(rate >= MIN_HIT_RATE and size > LARGE_BLOCK, words)


def somebody_was_preempted(attempt: Attempt) -> Verdict:
    """Preemption: it happened, and the answer came nevertheless."""
    events = [event for record in attempt.records for event in record.events]
    preempted = [event for event in events if event.kind is EventKind.PREEMPTED]
    if not preempted:
        return Verdict(False, "Not yet: nobody was preempted")
    lost = sum(int(event.details.get("lost_tokens", 0)) for event in preempted)
    return Verdict(True, f"Done: {len(preempted)} preempted, {lost} stored tokens to be computed again")


def _verdict(done: bool, words: str) -> Verdict:
    return Verdict(done, f"{'Done' if done else 'Not yet'}: {words}")


def _num_steps(records: Records) -> int:
    return sum(1 for record in records if record.num_tokens or record.num_inactive_rows)


def _arrivals(records: Records) -> dict[int, int]:
    """request → prompt tokens."""
    return {
        event.request_id: int(event.details["num_prompt_tokens"])
        for record in records
        for event in record.events
        if event.kind is EventKind.ARRIVED and event.request_id is not None
    }


def _first_token_s(records: Records) -> dict[int, float]:
    return {
        event.request_id: float(event.details["ttft_s"])
        for record in records
        for event in record.events
        if event.kind is EventKind.FIRST_TOKEN and event.request_id is not None
    }
