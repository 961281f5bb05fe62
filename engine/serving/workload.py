"""Seeded workloads: who asks when, how long the prompts are and how much is answered.

Owns arrival processes, length mixes, shared beginnings and the reading of production traces. Pure: the same spec
gives the same requests, token by token, on every machine. Never knows the engine, a clock, text or torch;
`engine.serving.load` sends what stands here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from engine.serving.trace_csv import TraceRow

MAX_REQUESTS = 20_000
MAX_TOKENS = 1_000_000


class WorkloadError(ValueError):
    """A workload that makes no sense, or a trace file that can't be read; the message says what to change."""


class Arrivals(StrEnum):
    """When requests come."""

    AT_ONCE = "at_once"  # all in the same moment
    POISSON = "poisson"  # independent people: exponential gaps, `rate_per_s` on average
    BURST = "burst"  # `burst_size` together, then nothing for `burst_gap_s`
    CLOSED = "closed"  # `num_users` people; each asks again `think_s` after the answer has ended
    TRACE = "trace"  # as they came to a production service


@dataclass(frozen=True, slots=True)
class LengthClass:
    """One kind of request in a mix: how often, and the ranges (both ends possible) its lengths are drawn from."""

    weight: float = 1.0
    prompt_tokens: tuple[int, int] = (32, 96)
    output_tokens: tuple[int, int] = (16, 64)


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """Everything that decides a workload. With `shared_prefix_share` of 0.7, seven of ten prompts begin with one of
    `num_shared_prefixes` beginnings of `shared_prefix_tokens` tokens (a system prompt, say), added to their length.

    `lengths` fixes the (prompt, output) tokens of each request in order and wins over `mix`. `trace` gives arrivals
    and lengths when `arrivals` is "trace"; `trace_speed` of 10 replays ten times as fast; no request is longer than
    `max_total_tokens` (prompt + output): the prompt is cut first, to leave the answer its room. With
    `asked_tokens_factor` of 4 people ask for four times the tokens that their answers turn out to have, as they do:
    it only matters to who reserves memory by what was asked.
    """

    num_requests: int = 16
    arrivals: Arrivals = Arrivals.POISSON
    rate_per_s: float = 2.0
    burst_size: int = 8
    burst_gap_s: float = 5.0
    num_users: int = 4
    think_s: float = 0.0
    mix: tuple[LengthClass, ...] = (LengthClass(),)
    lengths: tuple[tuple[int, int], ...] = ()
    shared_prefix_share: float = 0.0
    shared_prefix_tokens: int = 0
    num_shared_prefixes: int = 1
    max_total_tokens: int = MAX_TOKENS
    asked_tokens_factor: float = 1.0
    trace: tuple[TraceRow, ...] = field(default=(), repr=False)
    trace_speed: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise WorkloadError(f"{name} must be from {low:g} to {high:g}, got {value!r}")
        for kind in self.mix:
            _check_mix(kind)
        for prompt, output in self.lengths:
            if prompt < 1 or output < 1:
                raise WorkloadError(f"lengths must be at least 1 token, got prompt {prompt} and output {output}")
        if not self.mix and not self.lengths and self.arrivals is not Arrivals.TRACE:
            raise WorkloadError("a workload needs a mix of lengths or a list of lengths")
        if self.arrivals is Arrivals.TRACE and not self.trace:
            raise WorkloadError("arrivals from a trace need a trace: choose a file first")


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("num_requests", 1, MAX_REQUESTS),
    ("rate_per_s", 0.001, 10_000),
    ("burst_size", 1, MAX_REQUESTS),
    ("burst_gap_s", 0, 3_600),
    ("num_users", 1, 1_000),
    ("think_s", 0, 3_600),
    ("shared_prefix_share", 0, 1),
    ("shared_prefix_tokens", 0, MAX_TOKENS),
    ("num_shared_prefixes", 1, 1_000),
    ("max_total_tokens", 2, MAX_TOKENS),
    ("asked_tokens_factor", 1, 1_000),
    ("trace_speed", 0.001, 1_000_000),
)


def _check_mix(kind: LengthClass) -> None:
    if not (math.isfinite(kind.weight) and kind.weight > 0):
        raise WorkloadError(f"a weight in the mix must be more than 0, got {kind.weight!r}")
    for name, (low, high) in (("prompt_tokens", kind.prompt_tokens), ("output_tokens", kind.output_tokens)):
        if not 1 <= low <= high <= MAX_TOKENS:
            raise WorkloadError(f"{name} must be a range within 1 to {MAX_TOKENS}, low end first, got {low} to {high}")


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One request to come. `arrival_s` counts from the workload's start. Of a closed workload it is None but for each
    user's first: the others come `think_s` after request `after` has ended."""

    index: int
    arrival_s: float | None
    user: int
    num_prompt_tokens: int
    num_output_tokens: int
    shared_prefix: int | None = None
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """A spec, worked out: the requests in order of arrival."""

    spec: WorkloadSpec
    requests: tuple[WorkloadRequest, ...]
    num_cut: int = 0
    """Requests of a trace whose prompt or answer was cut to `max_total_tokens`."""

    def max_tokens(self, request: WorkloadRequest) -> int:
        """How many tokens the person behind `request` allows for the answer."""
        asked = round(request.num_output_tokens * self.spec.asked_tokens_factor)
        return max(request.num_output_tokens, min(asked, self.spec.max_total_tokens - request.num_prompt_tokens))

    def prompt_token_ids(self, request: WorkloadRequest, vocabulary: Sequence[int]) -> tuple[int, ...]:
        """The prompt of `request`, drawn from `vocabulary` (token ids that may stand in a prompt).

        Made only when it is sent, from the seed and the request's index alone, so that long traces cost no memory.
        """
        own = request.num_prompt_tokens
        shared: list[int] = []
        if request.shared_prefix is not None:
            rng = random.Random(f"{self.spec.seed}/prefix/{request.shared_prefix}")
            shared = rng.choices(vocabulary, k=min(self.spec.shared_prefix_tokens, own - 1))
        rng = random.Random(f"{self.spec.seed}/prompt/{request.index}")
        return (*shared, *rng.choices(vocabulary, k=own - len(shared)))


def generate(spec: WorkloadSpec) -> Workload:
    """Work out `spec`. Arrivals, lengths and sharing come from separate random streams of the one seed, so that
    changing one of them leaves the others as they were."""
    if spec.arrivals is Arrivals.TRACE:
        return _from_trace(spec)
    arrivals = _arrival_times(spec)
    lengths = _lengths(spec)
    prefixes = _shared_prefixes(spec)
    requests = []
    for i in range(spec.num_requests):
        prompt, output = lengths[i]
        if prefixes[i] is not None:
            prompt += spec.shared_prefix_tokens
        closed = spec.arrivals is Arrivals.CLOSED
        requests.append(
            WorkloadRequest(
                index=i,
                arrival_s=arrivals[i],
                user=i % spec.num_users if closed else i,
                num_prompt_tokens=min(prompt, spec.max_total_tokens - 1),
                num_output_tokens=max(1, min(output, spec.max_total_tokens - prompt)),
                shared_prefix=prefixes[i],
                after=i - spec.num_users if closed and i >= spec.num_users else None,
            )
        )
    return Workload(spec, tuple(requests))


def _arrival_times(spec: WorkloadSpec) -> list[float | None]:
    n = spec.num_requests
    if spec.arrivals is Arrivals.AT_ONCE:
        return [0.0] * n
    if spec.arrivals is Arrivals.BURST:
        return [(i // spec.burst_size) * spec.burst_gap_s for i in range(n)]
    if spec.arrivals is Arrivals.CLOSED:
        return [0.0 if i < spec.num_users else None for i in range(n)]
    rng = random.Random(f"{spec.seed}/arrivals")
    times: list[float | None] = []
    now = 0.0
    for _ in range(n):
        times.append(now)  # the first one comes at once: nobody wants to watch an idle engine
        now += rng.expovariate(spec.rate_per_s)
    return times


def _lengths(spec: WorkloadSpec) -> list[tuple[int, int]]:
    if spec.lengths:
        return [spec.lengths[i % len(spec.lengths)] for i in range(spec.num_requests)]
    rng = random.Random(f"{spec.seed}/lengths")
    kinds = rng.choices(spec.mix, weights=[kind.weight for kind in spec.mix], k=spec.num_requests)
    return [(rng.randint(*kind.prompt_tokens), rng.randint(*kind.output_tokens)) for kind in kinds]


def _shared_prefixes(spec: WorkloadSpec) -> list[int | None]:
    rng = random.Random(f"{spec.seed}/sharing")
    # Both numbers are drawn for everybody, so that a larger share adds sharers and changes nobody else.
    draws = [(rng.random(), rng.randrange(spec.num_shared_prefixes)) for _ in range(spec.num_requests)]
    return [which if draw < spec.shared_prefix_share and spec.shared_prefix_tokens else None for draw, which in draws]


def _from_trace(spec: WorkloadSpec) -> Workload:
    requests = []
    num_cut = 0
    for i, row in enumerate(spec.trace[: spec.num_requests]):
        output = min(row.num_output_tokens, max(1, spec.max_total_tokens // 2))
        if row.num_prompt_tokens + row.num_output_tokens <= spec.max_total_tokens:
            output = row.num_output_tokens
        prompt = min(row.num_prompt_tokens, spec.max_total_tokens - output)
        num_cut += (prompt, output) != (row.num_prompt_tokens, row.num_output_tokens)
        requests.append(WorkloadRequest(i, row.arrival_s / spec.trace_speed, i, prompt, output))
    return Workload(spec, tuple(requests), num_cut)
