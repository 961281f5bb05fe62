"""Engines to measure: a loaded model behind the real scheduler, driven step by step without a thread."""

from __future__ import annotations

import random
from collections.abc import Sequence

from engine.engine import Engine
from engine.runner import Runner
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings


def random_prompts(count: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Prompts of random ordinary token ids; their text means nothing, their cost is that of any text."""
    rng = random.Random(seed)
    low = min(100, vocab_size - 1)
    return [[rng.randrange(low, vocab_size) for _ in range(length)] for _ in range(count)]


def run_to_end(
    runner: Runner, settings: EngineSettings, prompts: Sequence[Sequence[int]], lengths: Sequence[int]
) -> tuple[list[list[int]], Engine]:
    """Serve all prompts, greedily, each to exactly its length; returns the answers and the engine afterwards."""
    engine = Engine(runner, settings)
    requests = [
        Request(i, tuple(prompt), SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True), n, seed=0)
        for i, (prompt, n) in enumerate(zip(prompts, lengths, strict=True))
    ]
    for request in requests:
        request.arrival_s = engine.clock()
        engine.add(request)
    while engine.can_work:
        engine.step()
        if engine.last_error is not None:
            raise engine.last_error
    return [request.output_token_ids for request in requests], engine
