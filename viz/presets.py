"""Workloads that show something: each preset with its story, sized to the engine as it is now.

Owns which workload makes which effect visible. Never knows how it is sent or drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.serving.trace_csv import TraceRow
from engine.serving.workload import Arrivals, LengthClass, WorkloadSpec

State = Mapping[str, Any]
SMALL_POOL_BLOCKS = 96


@dataclass(frozen=True, slots=True)
class Preset:
    """One preset. `settings` are changes of the engine that it asks for first, where the switches are free."""

    name: str
    title: str
    story: str
    spec: Callable[[State], WorkloadSpec]
    settings: Callable[[State], dict[str, Any]] = field(default=lambda state: {})


def burst(state: State) -> WorkloadSpec:
    """One and a half times as many requests as there are slots, three times over."""
    size = max(4, state["max_num_seqs"] * 3 // 2)
    return WorkloadSpec(
        num_requests=3 * size,
        arrivals=Arrivals.BURST,
        burst_size=size,
        burst_gap_s=6.0,
        mix=(LengthClass(prompt_tokens=(16, 64), output_tokens=(12, 48)),),
        max_total_tokens=state["max_model_len"],
    )


def long_prompt(state: State) -> WorkloadSpec:
    """Short requests that decode, then one whose prompt takes several steps' token budgets, then short ones again."""
    longest = min(3 * state["max_num_batched_tokens"], _fits(state) - 32)
    early = [TraceRow(0.0, 24, 96) for _ in range(4)]
    late = [TraceRow(0.9 + 0.1 * i, 24, 24) for i in range(4)]
    rows = (*early, TraceRow(0.8, max(32, longest), 16), *late)
    return WorkloadSpec(
        num_requests=len(rows), arrivals=Arrivals.TRACE, trace=rows, max_total_tokens=state["max_model_len"]
    )


def shared_prompt(state: State) -> WorkloadSpec:
    """Everybody's prompt begins with the same eight blocks."""
    return WorkloadSpec(
        num_requests=16,
        arrivals=Arrivals.POISSON,
        rate_per_s=3.0,
        mix=(LengthClass(prompt_tokens=(8, 32), output_tokens=(24, 64)),),
        shared_prefix_share=1.0,
        shared_prefix_tokens=min(8 * state["block_size"], _fits(state) // 2),
        max_total_tokens=state["max_model_len"],
    )


def memory_pressure(state: State) -> WorkloadSpec:
    """Prompts that just fit the pool together, and answers that do not."""
    pool = min(state["num_blocks"], _small_pool(state)) * state["block_size"]
    slots = min(state["max_num_seqs"], 8)
    prompt = max(4, int(0.7 * pool / slots))
    return WorkloadSpec(
        num_requests=2 * slots,
        arrivals=Arrivals.AT_ONCE,
        mix=(
            LengthClass(prompt_tokens=(prompt // 2, prompt), output_tokens=(prompt // 2, prompt)),
            LengthClass(prompt_tokens=(prompt, prompt), output_tokens=(prompt, 2 * prompt)),
        ),
        max_total_tokens=min(state["max_model_len"], pool),
    )


def uneven(state: State) -> WorkloadSpec:
    """A few long answers among short ones, all at once: what static batching waits for."""
    return WorkloadSpec(
        num_requests=2 * min(state["max_num_seqs"], 16),
        arrivals=Arrivals.AT_ONCE,
        lengths=((24, 96), (24, 12), (24, 16), (24, 10)),
        max_total_tokens=state["max_model_len"],
    )


def _fits(state: State) -> int:
    return int(min(state["max_model_len"], state["num_blocks"] * state["block_size"]))


def _small_pool(state: State) -> int:
    return max(8, SMALL_POOL_BLOCKS * 16 // state["block_size"])


PRESETS = (
    Preset("uneven", "Long among short answers", "Who waits for whom? Try it under static, then continuous.", uneven),
    Preset("burst", "A burst", "More at once than there are slots: watch the queue fill and drain.", burst),
    Preset(
        "long_prompt",
        "One long prompt",
        "It is read in chunks beside the others' decoding, or makes them wait.",
        long_prompt,
    ),
    Preset(
        "shared_prompt",
        "A shared system prompt",
        "The same first blocks belong to many. Switch sharing off to see the price.",
        shared_prompt,
    ),
    Preset(
        "memory_pressure",
        "Memory pressure",
        f"A pool of {SMALL_POOL_BLOCKS} blocks and answers that outgrow it: preemptions. The pool stays that "
        "small: “As at the start” under Sizes brings it back.",
        memory_pressure,
        lambda state: {"num_blocks": _small_pool(state)} if state["num_blocks"] > _small_pool(state) else {},
    ),
)
