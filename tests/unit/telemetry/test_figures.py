"""A run in figures, against records written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.telemetry.cut import cut
from engine.telemetry.figures import Targets, figures_of, percentile
from engine.telemetry.record import BlockChanges, Event, EventKind, StepRecord, Wait, WaitReason


def record(step: int, **fields: object) -> StepRecord:
    """A step of half a second that begins at step - 1 seconds."""
    defaults = {
        "time_s": step - 1.0,
        "policy": "static",
        "kv_layout": "paged",
        "token_budget": 64,
        "max_num_seqs": 2,
        "num_blocks": 10,
        "block_size": 4,
        "duration_s": 0.5,
    }
    return StepRecord(step=step, **(defaults | fields))  # type: ignore[arg-type]


def finished(request_id: int, tokens: int, ttft_s: float, queue_s: float, reason: str = "length") -> Event:
    details = {"reason": reason, "num_output_tokens": tokens, "ttft_s": ttft_s, "queue_s": queue_s}
    return Event(EventKind.FINISHED, request_id, details)


def run() -> list[StepRecord]:
    """A (3 tokens) and B (1 token) in three steps; B's slot is computed twice more after it ended."""
    return [
        record(
            1,
            active_prefill=(1, 2),
            num_tokens={1: 4, 2: 2},
            padding={2: 2},
            outputs={1: 1, 2: 1},
            num_active_blocks=2,
            internal_fragmentation=0.25,
            events=(
                Event(EventKind.ARRIVED, 1, {"arrival_s": -0.5}),
                Event(EventKind.ARRIVED, 2, {"arrival_s": 0.0}),
                finished(2, 1, 0.5, 0.0),
            ),
        ),
        record(2, active_decode=(1,), num_tokens={1: 1}, num_inactive_rows=1, outputs={1: 2}, num_active_blocks=4),
        record(
            4,
            active_decode=(1,),
            num_tokens={1: 1},
            num_inactive_rows=1,
            outputs={1: 3},
            num_active_blocks=0,
            num_preemptions=1,
            prefix_query_tokens=8,
            prefix_hit_tokens=2,
            events=(finished(1, 3, 1.0, 0.5), Event(EventKind.PREEMPTED, 7, {})),
        ),
    ]


def test_time_tokens_and_waste() -> None:
    figures = figures_of(run())
    assert figures.makespan_s == pytest.approx(4.0)  # from the arrival at -0.5 to 3.5
    assert (figures.num_finished, figures.num_steps, figures.output_tokens) == (2, 3, 4)
    assert figures.output_tokens_per_s == pytest.approx(1.0)
    assert (figures.padding_rows, figures.inactive_rows, figures.wasted_slot_steps) == (2, 2, 4)
    assert figures.utilization == pytest.approx(8 / 12)
    assert figures.most_at_once == 2
    assert figures.mean_finish_step == 2.0


def test_memory_and_sharing() -> None:
    figures = figures_of(run())
    assert (figures.peak_blocks, figures.peak_memory) == (4, 0.4)
    assert figures.internal_fragmentation == pytest.approx(0.125)  # the last step owned nothing
    assert figures.prefix_hit_rate == 0.25
    assert figures.num_preemptions == 1


def test_latencies_and_goodput() -> None:
    figures = figures_of(run(), Targets(ttft_s=0.8, itl_s=9.0))
    assert figures.ttft_p50_s == pytest.approx(0.75)
    assert figures.itl_p50_s == pytest.approx(1.5)  # tokens at 0.5, 1.5 and 3.5
    assert figures.itl_max_s == pytest.approx(2.0)
    assert figures.goodput_per_s == pytest.approx(1 / 4.0)  # A's first token came too late
    assert figures_of(run(), Targets(ttft_s=2.0, itl_s=1.0)).goodput_per_s == pytest.approx(1 / 4.0)  # A's gap
    assert figures_of(run(), Targets(ttft_s=2.0, itl_s=9.0)).goodput_per_s == pytest.approx(2 / 4.0)


def test_what_was_aborted_or_failed_is_no_finished_request() -> None:
    records = run()
    aborted = replace(records[2], events=(finished(1, 3, 1.0, 0.5, "abort"), finished(3, 0, 1.0, 0.5, "error")))
    assert figures_of([*records[:2], aborted]).num_finished == 1


def test_a_run_without_a_step_has_no_figures() -> None:
    with pytest.raises(ValueError, match="without a step"):
        figures_of([])


def test_percentiles_lie_between_neighbours() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0, 2.0], 0.95) == pytest.approx(1.95)
    assert percentile([], 0.5) is None


def test_a_cut_begins_at_zero_and_renumbers_requests_everywhere() -> None:
    before = record(40, time_s=99.0, num_preemptions=5, prefix_query_tokens=100, wasted_slot_steps=3)
    piece = record(
        41,
        time_s=100.0,
        pending_prefill=(70, 71),
        active_prefill=(70,),
        num_tokens={70: 4},
        padding={70: 1},
        computed={70: 4},
        outputs={70: 1},
        waiting={71: Wait(WaitReason.BEHIND, behind=70)},
        blocks=BlockChanges(tables={70: (0, (3,))}, released=(69,)),
        num_preemptions=6,
        prefix_query_tokens=130,
        wasted_slot_steps=4,
        events=(
            Event(EventKind.ARRIVED, 70, {"arrival_s": 99.5}),
            Event(EventKind.PREEMPTED, 71, {"for_request": 70}),
        ),
    )
    (moved,) = cut([piece], before, {70: 1, 71: 2})
    assert (moved.step, moved.time_s) == (1, 0.5)
    assert moved.pending_prefill == (1, 2)
    assert moved.num_tokens == {1: 4}
    assert moved.padding == {1: 1}
    assert moved.computed == {1: 4}
    assert moved.waiting == {2: Wait(WaitReason.BEHIND, behind=1)}
    assert moved.blocks.tables == {1: (0, (3,))}
    assert moved.blocks.released == (3,), "an id that is not known gets the next free number"
    assert (moved.num_preemptions, moved.prefix_query_tokens, moved.wasted_slot_steps) == (1, 30, 1)
    assert moved.events[0].details["arrival_s"] == 0.0
    assert moved.events[1].request_id == 2
    assert moved.events[1].details["for_request"] == 1
    assert piece.step == 41, "the history itself stays as it is"
