"""The engine's switches and sizes, checked once and then frozen.

Owns their ranges and which combinations make sense. Never knows a model or a running request.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from engine.scheduling.sampling_params import InvalidRequest

POLICIES = ("static", "decode_first", "prefill_first", "mixed")
POLICY_ALIASES = {"continuous": "mixed"}
DECODE_SELECTIONS = ("round_robin", "sticky")
KV_LAYOUTS = ("paged", "contiguous")

NEEDS_EMPTY_POOL = frozenset({"kv_layout", "block_size", "num_blocks"})
"""Settings that shape the pool: a change waits until nobody owns a block."""

CHANGEABLE = (
    "policy",
    "decode_selection",
    "kv_layout",
    "prefix_caching",
    "block_size",
    "num_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
)
"""Settings that may change while the engine runs; the rest is fixed by the model or at the start."""

_LIMITS = {
    "block_size": (1, 1_000_000),
    "num_blocks": (1, 10_000_000),
    "max_num_seqs": (1, 4096),
    "max_num_batched_tokens": (1, 1_000_000),
    "max_model_len": (2, 10_000_000),
    "max_queue": (1, 1_000_000),
    "prefill_threshold": (1, 1_000_000),
}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What `--policy`, `--kv-layout` and their like say; see each option in `python app.py --help`.

    `max_num_seqs` is the most requests in one step; `max_num_batched_tokens` the most tokens. `max_model_len` bounds
    prompt + answer. `prefill_threshold` is `decode_first`'s; `cohort_wait_s` is how long `static` waits for company.

    Raises InvalidRequest, naming the setting, for a value that cannot be.
    """

    policy: str = "mixed"
    decode_selection: str = "round_robin"
    kv_layout: str = "paged"
    prefix_caching: bool = True
    block_size: int = 16
    num_blocks: int = 512
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 512
    max_model_len: int = 8192
    max_queue: int = 256
    prefill_threshold: int = 3
    cohort_wait_s: float = 0.05

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", POLICY_ALIASES.get(self.policy, self.policy))
        for name, choices in (
            ("policy", (*POLICIES, *POLICY_ALIASES)),
            ("decode_selection", DECODE_SELECTIONS),
            ("kv_layout", KV_LAYOUTS),
        ):
            if getattr(self, name) not in choices:
                raise InvalidRequest(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}", name)
        if not isinstance(self.prefix_caching, bool):
            raise InvalidRequest(f"prefix_caching must be true or false, got {self.prefix_caching!r}", "prefix_caching")
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise InvalidRequest(f"{name} must be a whole number from {low} to {high}, got {value!r}", name)
        if self.policy == "static" and self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidRequest(
                f"a static batch needs at least one token a slot: max_num_batched_tokens "
                f"({self.max_num_batched_tokens}) is less than max_num_seqs ({self.max_num_seqs})",
                "max_num_batched_tokens",
            )
        if self.num_blocks * self.block_size < 2:
            raise InvalidRequest("a pool of one slot can hold no prompt and answer; raise num_blocks", "num_blocks")

    @property
    def context_limit(self) -> int:
        """The most tokens (prompt + answer) that one request may have: the model's, or all that the pool holds."""
        return min(self.max_model_len, self.num_blocks * self.block_size)

    def changed(self, changes: dict[str, Any]) -> EngineSettings:
        """These settings with `changes` made. Raises InvalidRequest for an unknown name or a wrong value."""
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                raise InvalidRequest(f"there is no setting named {name!r}; known: {', '.join(sorted(known))}", name)
        return replace(self, **changes)
