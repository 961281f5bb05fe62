"""Lessons 7 to 10: where keys and values live, and what happens when there is no room.

Owns their words and workloads.
"""

from __future__ import annotations

from dataclasses import replace

from engine.serving.workload import Arrivals, LengthClass, WorkloadSpec
from viz.lessons import checks
from viz.lessons.lesson import ASKED, Challenge, Lesson, Side
from viz.lessons.scheduling import at_once, one_by_one

FRAGMENTATION = Lesson(
    name="fragmentation",
    title="7 · Contiguous memory and fragmentation",
    claim="Memory in one piece per request wastes twice: what is reserved and not used, and holes that fit nobody.",
    workload=one_by_one(*((0.0, 16, n) for n in (40, 4, 40, 4, 40)), (0.07, 24, 8)),
    a=Side("contiguous", {"kv_layout": "contiguous", "num_blocks": 27, "block_size": 8, "max_num_seqs": 8}),
    b=Side("paged", {"kv_layout": "paged", "num_blocks": 27, "block_size": 8, "max_num_seqs": 8}),
    look=(
        "**KV blocks**, contiguous: striped blocks are reserved and empty; B and D leave holes of three blocks.",
        "F needs four: enough are free, no four of them side by side. The dotted line says *no unbroken run*.",
        "Paged: F comes in at once, anywhere.",
    ),
    challenge=Challenge(
        words="Keep contiguous memory. Find a pool of 32 blocks or fewer in which nobody waits for memory.",
        check=checks.nobody_waits_for_memory,
        knobs=("num_blocks", "block_size"),
        hint="Reserved are prompt and answer, rounded up to whole blocks: 7 + 3 + 7 + 3 + 7, and F.",
    ),
    note="notes/paged-kv.md",
    source="engine/kv/contiguous.py",
    test="tests/unit/kv/test_contiguous.py",
)

PAGING = Lesson(
    name="paging",
    title="8 · Paging and block tables",
    claim="Blocks one at a time, anywhere, found through a table: the same memory serves four times as many people.",
    workload=replace(at_once(*((20 + 7 * i % 30, 12 + 5 * i % 16) for i in range(10))), asked_tokens_factor=6.0),
    a=Side("contiguous", {"kv_layout": "contiguous", "num_blocks": 48, "block_size": 8, "max_num_seqs": 8}),
    b=Side("paged", {"kv_layout": "paged", "num_blocks": 48, "block_size": 8, "max_num_seqs": 8}),
    look=(
        "**KV blocks**: two requests and a lot of stripes, or eight requests and hardly any.",
        "Paged: the blocks of one request lie wherever one was free, and its table says where.",
        "**Memory over time**: what is stored, not what is owned, is what the pool is for.",
    ),
    challenge=Challenge(
        words="Make paged lose: the same requests must take longer than with contiguous memory.",
        check=checks.paged_loses,
        knobs=(ASKED, "num_blocks", "block_size", "max_num_seqs"),
        compares="both",
        hint="When is a reservation no waste? And what does paged memory keep in hand for everybody who runs? Try "
        "few, large blocks.",
    ),
    note="notes/paged-kv.md",
    source="engine/kv/paged.py",
    test="tests/unit/kv/test_paged.py",
)

SHARING = Lesson(
    name="sharing",
    title="9 · Prefix sharing and copy-on-write",
    claim="Whoever begins alike holds the same blocks: neither computed nor stored twice, copied only when written.",
    workload=WorkloadSpec(
        num_requests=12,
        arrivals=Arrivals.POISSON,
        rate_per_s=20.0,
        mix=(LengthClass(prompt_tokens=(8, 24), output_tokens=(8, 24)),),
        shared_prefix_share=1.0,
        shared_prefix_tokens=96,
    ),
    a=Side("sharing off", {"prefix_caching": False, "num_blocks": 128}),
    b=Side("sharing on", {"prefix_caching": True, "num_blocks": 128}),
    look=(
        "**KV blocks**: six blocks belong to everybody at once on the right; on the left each has its own six.",
        "**Batch strip**: the first prompt is computed whole, the others only from where they differ.",
        "When nobody owns them any more they stay, *cached*, until somebody needs the room.",
        'Copy-on-write shows on the live engine: `curl` a completion with `"n": 3`.',
    ),
    challenge=Challenge(
        words="Sharing is on, blocks are large (128 tokens), and nothing is shared. Get 60% of the prompts' tokens "
        "from the cache with blocks of more than 64 tokens.",
        check=checks.much_is_shared,
        knobs=("prefix_caching", "block_size"),
        start={"prefix_caching": True, "block_size": 128, "num_blocks": 128},
        hint="Only whole blocks are shared, and the common beginning has 96 tokens.",
    ),
    note="notes/prefix-sharing.md",
    source="engine/kv/prefix_index.py",
    test="tests/unit/kv/test_prefix_index.py",
)

PREEMPTION = Lesson(
    name="preemption",
    title="10 · Preemption and overload",
    claim="When memory runs out, the latest gives everything back and computes it again later. It costs time, never a "
    "token.",
    workload=at_once((12, 20), (12, 20), (12, 20), (12, 20)),
    a=Side("24 blocks", {"num_blocks": 24, "block_size": 8}),
    b=Side("12 blocks", {"num_blocks": 12, "block_size": 8}),
    look=(
        "**Batch strip**, right: D is thrown out in step 14 and comes back in step 21, prompt and answer in one chunk.",
        "The × marks it. Its blocks went to A, which arrived first and needed one more.",
        "Nobody starves: a request never preempts an earlier one.",
    ),
    challenge=Challenge(
        words="Cause a preemption, here or on the live engine.",
        check=checks.somebody_was_preempted,
        knobs=("num_blocks", "block_size", "max_num_seqs"),
        works_live=True,
        hint="Four requests of 12 + 20 tokens. How few blocks are too few for all, and enough to let them in?",
    ),
    note="notes/preemption.md",
    source="engine/scheduling/scheduler.py",
    test="tests/flow/test_preemption.py",
)

LESSONS = (FRAGMENTATION, PAGING, SHARING, PREEMPTION)
