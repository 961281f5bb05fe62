"""What it costs that an answer has the same bits in any company: decoding as served, and without what that asks for.

    python -m tests.flow.cost_of_same_bits --batch 1 4 8 16 32

As served: one form of the weights whatever the number of requests, rows filled up to numbers that add in equal order.
Free: the same form without filling up; and the other form that this machine can serve in (4-bit or all bits), which an
engine that chose by the number of requests could take. Rounds are interleaved; a round is 32 decode steps of one batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import torch

from engine.bench import common
from engine.bench.engines import random_prompts
from engine.engine import Engine
from engine.loading import LoadedModel, load_model, open_model
from engine.model import linears
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings

PROMPT_TOKENS, NEW_TOKENS = 64, 33


@contextmanager
def nothing_filled_up(loaded: LoadedModel) -> Iterator[None]:
    """Every product takes the rows that there are. Changes the model; puts it back."""
    model = loaded.runner.model
    with (
        patch.object(linears, "steady_num_rows", lambda num_rows: num_rows),
        patch.object(model, "_num_computed", None),
        patch("engine.kv.paged_attention.MIN_ROWS", 1),
        patch.object(linears.OneDNNLinear, "__call__", linears.OneDNNLinear.product),
    ):
        yield


def median_step_s(loaded: LoadedModel, batch: int, seed: int) -> float:
    """Of the steps in which `batch` requests decode."""
    settings = EngineSettings(
        max_num_seqs=batch,
        max_num_batched_tokens=batch * PROMPT_TOKENS,
        num_blocks=batch * -(-(PROMPT_TOKENS + NEW_TOKENS) // 16),
        max_queue=256,
    )
    engine = Engine(loaded.runner, settings)
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    for i, prompt in enumerate(random_prompts(batch, PROMPT_TOKENS, loaded.vocab_size, seed)):
        engine.add(Request(i, tuple(prompt), params, NEW_TOKENS, seed=0))
    engine.step()
    steps = []
    while engine.can_work:
        began = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - began)
    return statistics.median(steps)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    opened = open_model("auto", "cpu", "auto")
    served = load_model(opened, "auto", 1, 16)
    other = load_model(opened, "none" if served.info["quantization"] == "int4" else "int4", 1, 16)
    names = ("as served", "not filled up", f"in the other form ({other.info['quantization']})")
    seconds: dict[tuple[int, str], list[float]] = {}
    median_step_s(served, 1, 0)
    median_step_s(other, 1, 0)
    for seed in range(args.rounds):
        for batch in args.batch:
            for name, loaded in zip(names, (served, served, other), strict=True):
                with nullcontext() if name == names[0] else nothing_filled_up(loaded):
                    seconds.setdefault((batch, name), []).append(median_step_s(loaded, batch, seed))
    print(f"{common.processor()}; {served.info['dtype']}, quantization {served.info['quantization']}")
    print(f"{torch.get_num_threads()} threads, {args.rounds} rounds; tokens a second, medians [least..most]")
    for batch in args.batch:
        cells = []
        for name in names:
            rates = [batch / s for s in seconds[batch, name]]
            cells.append(f"{name} {statistics.median(rates):.0f} [{min(rates):.0f}..{max(rates):.0f}]")
        print(f"batch {batch}: " + ", ".join(cells))


if __name__ == "__main__":
    main()
