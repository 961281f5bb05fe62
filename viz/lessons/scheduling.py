"""Lessons 1 to 6: from one sequence to many at once.

Owns their words and workloads.
"""

from __future__ import annotations

from engine.serving.trace_csv import TraceRow
from engine.serving.workload import Arrivals, WorkloadSpec
from viz.lessons import checks
from viz.lessons.lesson import ANSWERS, Challenge, Lesson, Side


def at_once(*lengths: tuple[int, int]) -> WorkloadSpec:
    """Requests of (prompt, answer) tokens, all in one moment."""
    return WorkloadSpec(num_requests=len(lengths), arrivals=Arrivals.AT_ONCE, lengths=lengths)


def one_by_one(*rows: tuple[float, int, int]) -> WorkloadSpec:
    """Requests of (second of arrival, prompt, answer)."""
    trace = tuple(TraceRow(*row) for row in rows)
    return WorkloadSpec(num_requests=len(rows), arrivals=Arrivals.TRACE, trace=trace)


PREFILL_AND_DECODE = Lesson(
    name="prefill-and-decode",
    title="1 · Prefill and decode",
    claim="A prompt is read many tokens at a time. An answer is written one token at a time, and each token takes a "
    "whole pass over all weights.",
    # The live engine may start on the first request before the others are in: its prompt alone outweighs all the rest.
    workload=at_once((80, 16), (16, 16), (4, 16)),
    a=Side("32 tokens a step", {"max_num_batched_tokens": 32}),
    b=None,
    look=(
        "**Batch strip**: dark cells read a prompt (prefill), light ones write a token (decode).",
        "**Step anatomy**: steps with prefill take longer, though not as many times longer as they compute more.",
        "C has a short prompt and still waits: A's prompt uses up the token budget first.",
    ),
    challenge=Challenge(
        words="Make one step compute more tokens than all steps after it together.",
        check=checks.first_step_outweighs,
        knobs=("max_num_batched_tokens",),
        works_live=True,
        hint="How many prompt tokens are there in all?",
    ),
    note="notes/kv-cache.md",
    source="engine/scheduling/policies.py",
    test="tests/flow/test_policies.py",
)

KV_CACHE = Lesson(
    name="kv-cache",
    title="2 · The KV cache",
    claim="Keys and values of a token never change. Kept, every further token costs one row, however long the text is.",
    workload=at_once((48, 96)),
    a=Side("one request", {}),
    b=None,
    look=(
        "**Step anatomy**: after the first step every step computes one row.",
        "**KV blocks**: a new block every 16 tokens. That is the price: memory instead of arithmetic.",
        "Without the cache step 96 would compute 143 rows, all of them known already.",
    ),
    challenge=Challenge(
        words="Arrange a run in which the cache spares at least 20,000 rows.",
        check=checks.cache_spares,
        knobs=(ANSWERS,),
        works_live=True,
        hint="What is spared grows with the square of the answer's length. On the live engine: ask for a long story.",
    ),
    note="notes/kv-cache.md",
    source="engine/model/generate.py",
    test="tests/unit/model/test_generate.py",
)

PADDING = Lesson(
    name="padding",
    title="3 · Padding and masks",
    claim="A static batch is a rectangle. What is not somebody's token is computed all the same, and masked.",
    workload=at_once((60, 24), (8, 6), (20, 12), (12, 8)),
    a=Side("static", {"policy": "static"}),
    b=Side("continuous", {"policy": "mixed"}),
    look=(
        "**Batch strip**: hatched cells are padding before a prompt and inactive slots after an answer.",
        "**Tokens a step**, under the strip: the hatched part is work for nothing. The continuous side has none.",
        "All members of the static batch get their first token in the same step: the longest prompt decides.",
    ),
    challenge=Challenge(
        words="Keep static batching and get the waste under 5% of all rows.",
        check=checks.static_wastes_little,
        knobs=("max_num_seqs", "max_num_batched_tokens"),
        works_live=True,
        hint="Which batch needs no padding at all? Look at what it costs in steps.",
    ),
    note="notes/static-batching.md",
    source="engine/model/attention.py",
    test="tests/unit/model/test_attention.py",
)

CONTINUOUS = Lesson(
    name="continuous",
    title="4 · Continuous batching",
    claim="Deciding anew before every step who is in the batch takes 20 steps where a closed batch takes 32.",
    workload=at_once(*((1, length) for length in (16, 4, 4, 4, 16, 4, 4, 4))),
    a=Side("static", {"policy": "static"}),
    b=Side("continuous", {"policy": "mixed"}),
    look=(
        "**Batch strip**, static: three slots are computed for nothing while four people wait outside.",
        "Continuous: in the step after B, C and D have ended, E, F and G are in.",
        "The dotted line before E says why it waits: the batch is closed.",
    ),
    challenge=Challenge(
        words="With continuous batching, be no slower than the static batch, with half its slots.",
        check=checks.few_slots_suffice,
        knobs=("policy", "max_num_seqs"),
        start={"policy": "mixed"},
        hint="56 tokens in all. How many steps do they need at least on n slots?",
    ),
    note="notes/continuous-batching.md",
    source="engine/engine.py",
    test="tests/flow/test_policies.py",
)

PENDING_DECODE = Lesson(
    name="pending-decode",
    title="5 · Why pending_decode exists",
    claim="Being able to decode is not being chosen to. Who goes first decides between a short wait for the first "
    "token (TTFT) and an even flow of the next ones (ITL).",
    workload=one_by_one(*((0.03 * i, 24 if i % 2 else 6, 8) for i in range(8))),
    a=Side("decode first", {"policy": "decode_first", "max_num_seqs": 2, "max_num_batched_tokens": 24}),
    b=Side("prefill first", {"policy": "prefill_first", "max_num_seqs": 2, "max_num_batched_tokens": 24}),
    look=(
        "**Batch strip**: holes in a row are steps in which that request could decode and was not chosen.",
        "**Time to first token**: the right curve rises sooner. Gaps between tokens are longer there.",
        "The dotted line of a waiting request says whose turn it was.",
    ),
    challenge=Challenge(
        words="Halve the p95 TTFT of *decode first* and keep at least 95% of its tokens per second.",
        check=checks.first_tokens_twice_as_soon,
        knobs=("policy", "max_num_seqs", "max_num_batched_tokens", "decode_selection"),
        hint="More slots are one way. Is there one without?",
    ),
    note="notes/scheduling-policies.md",
    source="engine/scheduling/policies.py",
    test="tests/unit/scheduling/test_policies.py",
)

CHUNKED_PREFILL = Lesson(
    name="chunked-prefill",
    title="6 · Chunked prefill",
    claim="Cut a long prompt into chunks that fill what the decodes leave of the token budget, and nobody stutters.",
    workload=one_by_one((0.0, 4, 26), (0.0, 4, 26), (0.0, 4, 26), (0.045, 96, 8)),
    a=Side("whole prompts first", {"policy": "prefill_first", "max_num_batched_tokens": 128}),
    b=Side("chunks, 16 tokens a step", {"policy": "mixed", "max_num_batched_tokens": 16}),
    look=(
        "**Batch strip**: D's 96 tokens in one cell, and a hole in every other row; or in eight cells and no hole.",
        "On the left three people have one gap of 56 ms; on the right nobody has one over 15 ms.",
        "D itself pays: its first token comes later.",
    ),
    challenge=Challenge(
        words="No gap longer than 12.5 ms, and D's first token within 200 ms.",
        check=checks.nobody_stutters,
        knobs=("policy", "max_num_batched_tokens"),
        start={"policy": "mixed", "max_num_batched_tokens": 16},
        hint="A step costs 8 ms and 0.4 ms a row. Three rows of it are the others' tokens.",
    ),
    note="notes/scheduling-policies.md",
    source="engine/scheduling/policies.py",
    test="tests/flow/test_policies.py",
)

LESSONS = (PREFILL_AND_DECODE, KV_CACHE, PADDING, CONTINUOUS, PENDING_DECODE, CHUNKED_PREFILL)
