"""Questions that a comparison answers: a workload and two settings each.

Owns these pairs. Never knows how they are run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.serving.workload import Arrivals, LengthClass, WorkloadSpec
from viz import presets

SETTING_KEYS = ("policy", "kv_layout", "prefix_caching")

SEED_LENGTHS = {
    "uniform": (8,) * 8,
    "moderately uneven": (12, 8, 8, 8, 12, 8, 8, 8),
    "highly uneven": (16, 4, 4, 4, 16, 4, 4, 4),
    "extremely uneven": (32, 4, 4, 4, 32, 4, 4, 4),
}
SCHEDULER_EXAMPLE = "The scheduler example: 16 4 4 4 16 4 4 4"


def _answers_only(lengths: tuple[int, ...], prompt_tokens: int) -> WorkloadSpec:
    return WorkloadSpec(
        num_requests=len(lengths), arrivals=Arrivals.AT_ONCE, lengths=tuple((prompt_tokens, n) for n in lengths)
    )


def asked_too_much(state: Mapping[str, Any]) -> WorkloadSpec:
    """People who allow four times the tokens that their answers turn out to have."""
    total = min(state["max_model_len"], state["num_blocks"] * state["block_size"])
    answer = max(8, min(96, total // 16))
    return WorkloadSpec(
        num_requests=3 * state["max_num_seqs"],
        arrivals=Arrivals.POISSON,
        rate_per_s=20.0,
        mix=(LengthClass(prompt_tokens=(16, 96), output_tokens=(answer // 4, answer)),),
        asked_tokens_factor=8.0,
        max_total_tokens=total,
    )


def crowd_with_one_prompt(state: Mapping[str, Any]) -> WorkloadSpec:
    """The shared system prompt again, longer and for a crowd that comes fast."""
    spec = presets.shared_prompt(state)
    prefix = min(3 * spec.shared_prefix_tokens, state["max_model_len"] // 2)
    return replace(spec, num_requests=4 * state["max_num_seqs"], rate_per_s=50.0, shared_prefix_tokens=prefix)


def _always(spec: WorkloadSpec) -> Callable[[Mapping[str, Any]], WorkloadSpec]:
    return lambda state: spec


WORKLOADS: dict[str, Callable[[Mapping[str, Any]], WorkloadSpec]] = {
    SCHEDULER_EXAMPLE: _always(_answers_only(SEED_LENGTHS["highly uneven"], 1)),
    **{f"Eight answers, {name}": _always(_answers_only(lengths, 24)) for name, lengths in SEED_LENGTHS.items()},
    **{preset.title: preset.spec for preset in presets.PRESETS},
    "People ask for more than they get": asked_too_much,
    "Many with one system prompt": crowd_with_one_prompt,
}


def pool_for(workload: str, typed: Mapping[str, int], engine: Mapping[str, int]) -> int:
    """How many blocks to compare with once somebody has chosen `workload`: the preset's where it needs a small pool; as
    many as the engine has again after such a one; else those typed."""
    state = {**typed, "num_blocks": max(typed["num_blocks"], engine["num_blocks"])}
    pools = {preset.title: preset.settings(state).get("num_blocks") for preset in presets.PRESETS}
    small = pools.get(workload)
    if small is not None:
        return min(small, typed["num_blocks"])
    return engine["num_blocks"] if typed["num_blocks"] in pools.values() else typed["num_blocks"]


@dataclass(frozen=True, slots=True)
class Question:
    """A comparison to start with. `sizes` are engine settings that make it visible, the same for both sides."""

    name: str
    title: str
    story: str
    workload: str
    a: Mapping[str, Any]
    b: Mapping[str, Any]
    sizes: Mapping[str, int] = field(default_factory=dict)


def _side(policy: str = "mixed", kv_layout: str = "paged", prefix_caching: bool = True) -> dict[str, Any]:
    return {"policy": policy, "kv_layout": kv_layout, "prefix_caching": prefix_caching}


QUESTIONS = (
    Question(
        "example",
        "The scheduler example",
        "Eight answers of 16 4 4 4 16 4 4 4 tokens on four slots: 32 steps or 20?",
        SCHEDULER_EXAMPLE,
        _side("static"),
        _side("mixed"),
        {"max_num_seqs": 4},
    ),
    Question(
        "batching",
        "Static or continuous?",
        "Long answers among short ones. What does a batch cost that waits for its longest member?",
        "Long among short answers",
        _side("static"),
        _side("mixed"),
    ),
    Question(
        "memory",
        "Contiguous or paged?",
        "Everybody asks for more tokens than the answer has. What does reserving them cost?",
        "People ask for more than they get",
        _side(kv_layout="contiguous"),
        _side(kv_layout="paged"),
        {"num_blocks": 96, "block_size": 16, "max_num_seqs": 16},
    ),
    Question(
        "sharing",
        "Sharing off or on?",
        "One system prompt for all. What is saved when its blocks are shared?",
        "Many with one system prompt",
        _side(prefix_caching=False),
        _side(prefix_caching=True),
    ),
    Question(
        "chunks",
        "One long prompt",
        "Prefill first lets everyone wait for it, continuous reads it in chunks. What do the others feel?",
        "One long prompt",
        _side("prefill_first"),
        _side("mixed"),
        {"max_num_batched_tokens": 256},
    ),
)
