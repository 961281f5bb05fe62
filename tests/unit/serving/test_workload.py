"""Workloads: the same seed gives the same requests, and each knob turns what it says."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.serving.trace_csv import MAX_LINE_CHARS, MAX_TRACE_BYTES, TraceError, TraceRow, parse_trace, read_trace
from engine.serving.workload import Arrivals, LengthClass, WorkloadError, WorkloadSpec, generate

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
WORDS = range(100, 200)


def test_the_same_seed_gives_the_same_requests_token_by_token() -> None:
    spec = WorkloadSpec(num_requests=20, shared_prefix_share=0.5, shared_prefix_tokens=8, seed=7)
    first, second = generate(spec), generate(spec)
    assert first.requests == second.requests
    for request in first.requests:
        prompt = first.prompt_token_ids(request, WORDS)
        assert prompt == second.prompt_token_ids(request, WORDS)
        assert len(prompt) == request.num_prompt_tokens
        assert set(prompt) <= set(WORDS)


def test_another_seed_gives_others() -> None:
    one, other = (generate(WorkloadSpec(num_requests=20, seed=seed)) for seed in (1, 2))
    assert [r.arrival_s for r in one.requests] != [r.arrival_s for r in other.requests]
    assert [r.num_prompt_tokens for r in one.requests] != [r.num_prompt_tokens for r in other.requests]
    assert one.prompt_token_ids(one.requests[0], WORDS)[:8] != other.prompt_token_ids(other.requests[0], WORDS)[:8]


def test_changing_the_rate_leaves_lengths_and_prompts_as_they_were() -> None:
    slow, fast = (generate(WorkloadSpec(num_requests=10, rate_per_s=rate, seed=3)) for rate in (1.0, 10.0))
    for left, right in zip(slow.requests, fast.requests, strict=True):
        assert left.num_prompt_tokens == right.num_prompt_tokens
        assert left.num_output_tokens == right.num_output_tokens
        assert left.arrival_s == pytest.approx(10 * (right.arrival_s or 0.0))


def test_poisson_arrivals_have_the_asked_rate_and_varied_gaps() -> None:
    times = [r.arrival_s or 0.0 for r in generate(WorkloadSpec(num_requests=5000, rate_per_s=4.0)).requests]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert times[0] == 0.0
    assert mean(gaps) == pytest.approx(0.25, rel=0.05)
    # an exponential's deviation equals its mean
    assert pstdev(gaps) == pytest.approx(mean(gaps), rel=0.1)


def test_bursts_come_together() -> None:
    spec = WorkloadSpec(num_requests=7, arrivals=Arrivals.BURST, burst_size=3, burst_gap_s=5.0)
    assert [r.arrival_s for r in generate(spec).requests] == [0, 0, 0, 5, 5, 5, 10]


def test_closed_users_wait_for_their_own_answers() -> None:
    spec = WorkloadSpec(num_requests=7, arrivals=Arrivals.CLOSED, num_users=3)
    requests = generate(spec).requests
    assert [r.user for r in requests] == [0, 1, 2, 0, 1, 2, 0]
    assert [r.after for r in requests] == [None, None, None, 0, 1, 2, 3]
    assert [r.arrival_s for r in requests] == [0, 0, 0, None, None, None, None]


def test_a_mix_draws_from_its_classes_by_weight() -> None:
    mix = (LengthClass(9.0, (10, 10), (1, 1)), LengthClass(1.0, (500, 500), (2, 2)))
    requests = generate(WorkloadSpec(num_requests=2000, mix=mix)).requests
    long = [r for r in requests if r.num_prompt_tokens == 500]
    assert {r.num_prompt_tokens for r in requests} == {10, 500}
    assert all(r.num_output_tokens == 2 for r in long)
    assert len(long) / len(requests) == pytest.approx(0.1, abs=0.03)


def test_sharers_begin_with_the_very_same_tokens_and_others_do_not() -> None:
    spec = WorkloadSpec(num_requests=200, shared_prefix_share=0.3, shared_prefix_tokens=16)
    workload = generate(spec)
    sharers = [r for r in workload.requests if r.shared_prefix is not None]
    others = [r for r in workload.requests if r.shared_prefix is None]
    assert len(sharers) / 200 == pytest.approx(0.3, abs=0.1)
    prefix = workload.prompt_token_ids(sharers[0], WORDS)[:16]
    assert all(workload.prompt_token_ids(r, WORDS)[:16] == prefix for r in sharers)
    assert all(workload.prompt_token_ids(r, WORDS)[:16] != prefix for r in others)


def test_a_larger_share_adds_sharers_and_changes_nobody_else() -> None:
    few, many = (
        generate(WorkloadSpec(num_requests=100, shared_prefix_share=share, shared_prefix_tokens=4))
        for share in (0.2, 0.6)
    )
    for left, right in zip(few.requests, many.requests, strict=True):
        if left.shared_prefix is not None:
            assert right.shared_prefix == left.shared_prefix
        assert left.arrival_s == right.arrival_s
        assert left.num_output_tokens == right.num_output_tokens


@given(prompt=st.integers(1, 400), output=st.integers(1, 400), shared=st.integers(0, 400), most=st.integers(2, 300))
def test_no_request_is_longer_than_the_context(prompt: int, output: int, shared: int, most: int) -> None:
    spec = WorkloadSpec(
        num_requests=3,
        lengths=((prompt, output),),
        shared_prefix_share=1.0,
        shared_prefix_tokens=shared,
        max_total_tokens=most,
    )
    workload = generate(spec)
    for request in workload.requests:
        assert request.num_prompt_tokens >= 1
        assert request.num_output_tokens >= 1
        assert request.num_prompt_tokens + request.num_output_tokens <= most
        assert len(workload.prompt_token_ids(request, WORDS)) == request.num_prompt_tokens
        assert request.num_output_tokens <= workload.max_tokens(request)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_requests": 0}, "num_requests must be from 1"),
        ({"rate_per_s": float("nan")}, "rate_per_s"),
        ({"shared_prefix_share": 1.5}, "shared_prefix_share must be from 0 to 1"),
        ({"mix": ()}, "needs a mix"),
        ({"mix": (LengthClass(prompt_tokens=(9, 3)),)}, "low end first"),
        ({"mix": (LengthClass(weight=0),)}, "weight"),
        ({"lengths": ((0, 4),)}, "at least 1 token"),
        ({"arrivals": Arrivals.TRACE}, "choose a file first"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(changes: dict[str, object], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        WorkloadSpec(**changes)  # type: ignore[arg-type]


# -- traces ------------------------------------------------------------------------------------------------------


def test_a_trace_gives_arrivals_and_lengths_in_order_of_time() -> None:
    lines = [
        HEADER,
        "2023-11-16 18:17:03.9799600,374,44",
        "",
        "2023-11-16 18:17:02.9799600,12,5",
    ]
    assert parse_trace(lines) == (TraceRow(0.0, 12, 5), TraceRow(1.0, 374, 44))


def test_columns_may_stand_in_any_order_and_others_beside_them() -> None:
    lines = ["x,GeneratedTokens,timestamp,CONTEXTTOKENS", "?,5,2024-01-01T00:00:00Z,7"]
    assert parse_trace(lines) == (TraceRow(0.0, 7, 5),)


def test_a_replayed_trace_is_sped_up_and_cut_to_the_context() -> None:
    rows = (TraceRow(0.0, 50, 10), TraceRow(10.0, 500, 10), TraceRow(20.0, 500, 900))
    spec = WorkloadSpec(num_requests=9, arrivals=Arrivals.TRACE, trace=rows, trace_speed=5.0, max_total_tokens=100)
    workload = generate(spec)
    assert [r.arrival_s for r in workload.requests] == [0.0, 2.0, 4.0]
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in workload.requests] == [(50, 10), (90, 10), (50, 50)]
    assert workload.num_cut == 2


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "the first line must name the columns"),
        (["a,b,c", "1,2,3"], "missing: TIMESTAMP, ContextTokens, GeneratedTokens"),
        ([HEADER], "no request"),
        ([HEADER, "2024-01-01 00:00:00,5"], "line 2 has 2 columns"),
        ([HEADER, "yesterday,5,5"], "line 2: TIMESTAMP"),
        ([HEADER, "2024-01-01 00:00:00,-5,5"], "line 2: ContextTokens"),
        ([HEADER, "2024-01-01 00:00:00,5,1e3"], "line 2: GeneratedTokens"),
        ([HEADER, "2024-01-01 00:00:00,5,0"], "GeneratedTokens must be a whole number from 1"),
        ([HEADER, "2024-01-01 00:00:00,٣,5"], "line 2: ContextTokens"),
        ([HEADER, "2024-01-01 00:00:00,9999999999999999,5"], "line 2: ContextTokens"),
        ([HEADER, "x" * (MAX_LINE_CHARS + 1)], "line 2 is longer"),
        ([HEADER, '"2024-01-01 00:00:00,5,5'], "line 2"),
    ],
)
def test_hostile_traces_are_refused_by_line_without_repeating_them(lines: list[str], words: str) -> None:
    with pytest.raises(TraceError, match=words) as refusal:
        parse_trace(lines)
    assert "yesterday" not in str(refusal.value)


def test_a_trace_file_is_bounded_and_must_be_text(tmp_path: Path) -> None:
    big = tmp_path / "big.csv"
    big.write_bytes(b"a" * (MAX_TRACE_BYTES + 1))
    with pytest.raises(TraceError, match="may have 4,000,000"):
        read_trace(big)
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\x00\xff\xfe" * 50)
    with pytest.raises(TraceError, match=r"not text in UTF-8"):
        read_trace(binary)


def test_only_the_first_rows_are_kept() -> None:
    lines = [HEADER, *(f"2024-01-01 00:00:{second:02d},5,5" for second in range(30))]
    assert len(parse_trace(lines, max_rows=7)) == 7


def test_azures_own_file_is_read() -> None:
    path = os.environ.get("AZURE_TRACE")
    if not path:
        pytest.skip("AZURE_TRACE does not name the public trace's file")
    rows = read_trace(path)
    assert len(rows) == 19366
    assert rows[0] == TraceRow(0.0, 374, 44)
    assert all(before.arrival_s <= after.arrival_s for before, after in itertools.pairwise(rows))
