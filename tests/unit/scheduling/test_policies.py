"""Policies as pure functions: a view in, a choice out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.scheduling.policies import POLICIES
from engine.scheduling.policy import SELECTIONS, Choice, View, round_robin, sticky, view_of
from engine.scheduling.request import Request, State
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings
from engine.telemetry.record import WaitReason


def prefilling(request_id: int, num_tokens: int, computed: int = 0) -> Request:
    request = Request(request_id, (1,) * num_tokens, SamplingParams(), 16, 0)
    request.num_computed_tokens = computed
    return request


def decoding(request_id: int, last_step: int = 0) -> Request:
    request = prefilling(request_id, 3, 3)
    request.state, request.output_token_ids, request.last_scheduled_step = State.PENDING_DECODE, [7], last_step
    return request


def view(
    running: tuple[Request, ...] = (),
    queued: int = 0,
    *,
    now_s: float = 10.0,
    arrived_s: float = 0.0,
    slots: int = 0,
    admitted_now: int = 0,
    **settings: Any,
) -> View:
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 16} | settings
    queue = [prefilling(100 + i, 5) for i in range(queued)]
    for request in queue:
        request.arrival_s = arrived_s
    return view_of(now_s, EngineSettings(**sizes), running, queue, slots, admitted_now)


def ids(choice: Choice) -> list[tuple[int, int]]:
    return [(work.request.request_id, work.num_tokens) for work in choice.work]


def decoders(count: int) -> tuple[Request, ...]:
    return tuple(decoding(i) for i in range(count))


# -- who may come in --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "seen", "expected"),
    [
        ("mixed", view(decoders(3), 1), None),
        ("mixed", view(decoders(4), 1), WaitReason.NO_SLOT),
        ("mixed", view(decoders(3), 1, max_num_batched_tokens=3), WaitReason.NO_BUDGET),
        ("mixed", view((*decoders(1), prefilling(9, 14)), 1), None),
        ("mixed", view((*decoders(1), prefilling(9, 15)), 1), WaitReason.NO_BUDGET),
        ("mixed", view((prefilling(9, 40, computed=30),), 1), None),
        ("prefill_first", view(decoders(7), 1), None),
        ("prefill_first", view(decoders(8), 1), WaitReason.NO_SLOT),
        ("prefill_first", view(tuple(prefilling(i, 1) for i in range(4)), 1), WaitReason.NO_SLOT),
        ("prefill_first", view((prefilling(1, 15),), 1), None),
        ("prefill_first", view((prefilling(1, 16),), 1), WaitReason.NO_BUDGET),
        ("decode_first", view((), 1), None),
        ("decode_first", view(decoders(1), 1), WaitReason.DECODE_TURN),
        ("decode_first", view(decoders(1), 2), WaitReason.DECODE_TURN),
        ("decode_first", view(decoders(1), 3), None),
        ("decode_first", view((*decoders(1), prefilling(9, 5)), 2), None),
        ("decode_first", view((*decoders(1), prefilling(9, 5)), 1), WaitReason.DECODE_TURN),
        ("decode_first", view(decoders(1), 1, prefill_threshold=1), None),
        ("decode_first", view(decoders(8), 3), WaitReason.NO_SLOT),
        ("static", view((), 4, now_s=0.0), None),
        ("static", view((), 3, now_s=0.0), WaitReason.COHORT_FORMING),
        ("static", view((), 3, now_s=0.049), WaitReason.COHORT_FORMING),
        ("static", view((), 1, now_s=0.05), None),
        ("static", view((prefilling(0, 5),), 2, admitted_now=1), None),
        ("static", view(tuple(prefilling(i, 5) for i in range(4)), 2, admitted_now=4), WaitReason.BATCH_CLOSED),
        ("static", view((prefilling(0, 5),), 2), WaitReason.BATCH_CLOSED),
        ("static", view(decoders(1), 9, slots=4), WaitReason.BATCH_CLOSED),
    ],
)
def test_who_may_come_in(policy: str, seen: View, expected: WaitReason | None) -> None:
    assert POLICIES[policy].holds_back(seen) == expected


# -- who runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "seen", "expected"),
    [
        ("mixed", view(decoders(3)), [(0, 1), (1, 1), (2, 1)]),
        ("mixed", view((*decoders(2), prefilling(8, 30), prefilling(9, 5))), [(0, 1), (1, 1), (8, 14)]),
        ("mixed", view((*decoders(2), prefilling(8, 10), prefilling(9, 5))), [(0, 1), (1, 1), (8, 10), (9, 4)]),
        ("mixed", view((*decoders(4), prefilling(8, 10))), [(0, 1), (1, 1), (2, 1), (3, 1)]),
        ("mixed", view(decoders(4), max_num_batched_tokens=2), [(0, 1), (1, 1)]),
        ("prefill_first", view((*decoders(3), prefilling(8, 30))), [(8, 16)]),
        ("prefill_first", view((prefilling(8, 30, computed=20), prefilling(9, 5))), [(8, 10), (9, 5)]),
        ("prefill_first", view(decoders(6)), [(0, 1), (1, 1), (2, 1), (3, 1)]),
        ("decode_first", view((*decoders(2), prefilling(8, 30))), [(0, 1), (1, 1)]),
        ("decode_first", view((*decoders(2), prefilling(8, 30)), 2), [(8, 16)]),
        (
            "decode_first",
            view((*decoders(2), prefilling(8, 3), prefilling(9, 3), prefilling(10, 3))),
            [(8, 3), (9, 3), (10, 3)],
        ),
        ("decode_first", view((prefilling(8, 30),)), [(8, 16)]),
        ("decode_first", view(decoders(2), 3), [(0, 1), (1, 1)]),  # they wait for memory: no reason to stand still
        ("static", view(decoders(3), slots=3), [(0, 1), (1, 1), (2, 1)]),
    ],
)
def test_who_runs(policy: str, seen: View, expected: list[tuple[int, int]]) -> None:
    choice = POLICIES[policy].choose(seen)
    assert ids(choice) == expected
    assert all(work.num_padding == 0 for work in choice.work)
    assert choice.num_inactive_rows == 0


def test_nobody_runs_where_nobody_is() -> None:
    for policy in POLICIES.values():
        assert policy.choose(view(slots=4)) == replace(policy.choose(view()), work=(), num_inactive_rows=0)


@pytest.mark.parametrize(
    ("policy", "seen", "prefill", "decode"),
    [
        ("mixed", view(decoders(4), max_num_batched_tokens=2), WaitReason.NO_BUDGET, WaitReason.NO_BUDGET),
        ("mixed", view((*decoders(4), prefilling(9, 5))), WaitReason.NO_SLOT, WaitReason.NO_SLOT),
        ("mixed", view((prefilling(8, 20), prefilling(9, 5))), WaitReason.NO_BUDGET, WaitReason.NO_BUDGET),
        ("prefill_first", view((prefilling(8, 20), prefilling(9, 5))), WaitReason.NO_BUDGET, WaitReason.PREFILL_TURN),
        ("prefill_first", view(decoders(5)), WaitReason.DECODE_TURN, WaitReason.NO_SLOT),
        ("decode_first", view((*decoders(1), prefilling(8, 5)), 2), WaitReason.NO_BUDGET, WaitReason.PREFILL_TURN),
        ("decode_first", view((*decoders(5), prefilling(8, 5))), WaitReason.DECODE_TURN, WaitReason.NO_SLOT),
        ("static", view((*decoders(1), prefilling(8, 5)), slots=2), WaitReason.NO_SLOT, WaitReason.PREFILL_TURN),
        ("static", view(decoders(5), slots=5), WaitReason.NO_SLOT, WaitReason.NO_SLOT),
    ],
)
def test_why_the_others_that_hold_memory_do_not_run(
    policy: str, seen: View, prefill: WaitReason, decode: WaitReason
) -> None:
    choice = POLICIES[policy].choose(seen)
    assert (choice.idle_prefill, choice.idle_decode) == (prefill, decode)


# -- the static rectangle ---------------------------------------------------------------------------------------


def test_static_pads_on_the_left_to_the_longest_prompt() -> None:
    members = (prefilling(0, 2), prefilling(1, 4), prefilling(2, 3))
    choice = POLICIES["static"].choose(view(members, slots=3))
    assert [(w.num_tokens, w.num_padding) for w in choice.work] == [(2, 2), (4, 0), (3, 1)]


def test_static_prefills_as_many_columns_as_the_budget_holds() -> None:
    members = (prefilling(0, 2), prefilling(1, 9))
    choice = POLICIES["static"].choose(view(members, slots=2, max_num_batched_tokens=8))
    assert [(w.num_tokens, w.num_padding) for w in choice.work] == [
        (0, 4),
        (4, 0),
    ]  # the short one has only padding yet
    members[1].num_computed_tokens = 4
    choice = POLICIES["static"].choose(view(members, slots=2, max_num_batched_tokens=8))
    assert [(w.num_tokens, w.num_padding) for w in choice.work] == [(1, 3), (4, 0)]
    members[0].num_computed_tokens, members[1].num_computed_tokens = 1, 8
    choice = POLICIES["static"].choose(view(members, slots=2, max_num_batched_tokens=8))
    assert [(w.num_tokens, w.num_padding) for w in choice.work] == [(1, 0), (1, 0)]  # first tokens in the same step


def test_static_computes_for_slots_whose_request_has_ended() -> None:
    choice = POLICIES["static"].choose(view(decoders(1), slots=4))
    assert (ids(choice), choice.num_inactive_rows) == ([(0, 1)], 3)
    choice = POLICIES["static"].choose(view((prefilling(0, 4), prefilling(1, 2)), slots=4, max_num_batched_tokens=12))
    assert choice.num_inactive_rows == 2 * 3  # two lost slots, in each of three columns


# -- selection --------------------------------------------------------------------------------------------------


def test_round_robin_takes_those_whose_turn_is_longest_ago() -> None:
    ready = [decoding(0, 5), decoding(1, 3), decoding(2, 4), decoding(3, 3)]
    assert [request.request_id for request in round_robin(ready, 3)] == [1, 3, 2]
    assert [request.request_id for request in round_robin(ready, 9)] == [0, 1, 2, 3]


def test_sticky_takes_those_admitted_first() -> None:
    ready = [decoding(0, 5), decoding(1, 3), decoding(2, 4)]
    assert [request.request_id for request in sticky(ready, 2)] == [0, 1]


@pytest.mark.parametrize("policy", ["mixed", "prefill_first", "decode_first", "static"])
def test_the_selection_is_the_views(policy: str) -> None:
    ready = (decoding(0, 9), decoding(1, 1), decoding(2, 5), decoding(3, 2), decoding(4, 3))
    turns = POLICIES[policy].choose(view(ready, decode_selection="round_robin", slots=5))
    assert {request_id for request_id, _ in ids(turns)} == {1, 3, 4, 2}
    stuck = POLICIES[policy].choose(view(ready, decode_selection="sticky", slots=5))
    assert [request_id for request_id, _ in ids(stuck)] == [0, 1, 2, 3]


def test_a_policy_changes_nothing_and_remembers_nothing() -> None:
    seen = view((decoding(0), prefilling(1, 30), prefilling(2, 5)), 3)
    before = [(request, request.num_computed_tokens, request.state) for request in (*seen.prefilling, *seen.decoding)]
    for policy in POLICIES.values():
        assert (policy.holds_back(seen), policy.choose(seen)) == (policy.holds_back(seen), policy.choose(seen))
    after = [(request, request.num_computed_tokens, request.state) for request in (*seen.prefilling, *seen.decoding)]
    assert before == after


# -- the view ---------------------------------------------------------------------------------------------------


def test_the_view_after_an_admission_is_the_view_built_anew() -> None:
    running = [decoding(0), prefilling(1, 30, 7)]
    queue = [prefilling(2, 5), prefilling(3, 6)]
    queue[0].arrival_s, queue[1].arrival_s = 1.0, 2.0
    settings = EngineSettings()
    seen = view_of(9.0, settings, running, queue, 2, 0)
    for count in (1, 2):
        admitted = queue.pop(0)
        running.append(admitted)
        seen = seen.after_admission(admitted, queue)
        assert seen == view_of(9.0, settings, running, queue, 2 + count, count)


def test_a_view_without_some() -> None:
    seen = view((decoding(0), prefilling(1, 30), decoding(2), prefilling(3, 4))).without({1, 2})
    assert [request.request_id for request in (*seen.prefilling, *seen.decoding)] == [3, 0]


def test_names() -> None:
    assert sorted(POLICIES) == ["decode_first", "mixed", "prefill_first", "static"]
    assert sorted(SELECTIONS) == ["round_robin", "sticky"]
    assert EngineSettings(policy="continuous").policy == "mixed"
