"""What records cost a step: decoding with all of them, and with none, in turns.

    python -m tests.flow.cost_of_records --batch 8 32

With: the step record, the journal, the ring, the snapshot, the metrics, and a trace written to a file by its own thread
(`--record`). Without: none of these. Rounds are interleaved; a round is the 63 decode steps of one batch. Prints the
median step of each, the ratio of neighbours in time, and what the engine's thread itself spends on records.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from engine.bench import common
from engine.bench.engines import random_prompts
from engine.engine import Engine
from engine.loading import LoadedModel, load_model, open_model
from engine.scheduling.decisions import Decisions
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.serving.service import EngineService
from engine.settings import EngineSettings
from engine.telemetry.metrics import Metrics
from engine.telemetry.trace import TraceRecorder

PROMPT_TOKENS, NEW_TOKENS = 64, 64


class SilentEngine(Engine):
    """Forgets what happened instead of writing it down."""

    def _record(self, plan: StepPlan, *times: float) -> Any:
        self.num_steps = plan.step
        self.scheduler.kv.take_changes()
        self.scheduler.decisions = Decisions()


class TimedEngine(Engine):
    """Knows how long its records took."""

    record_s = 0.0

    def _record(self, plan: StepPlan, *times: float) -> Any:
        began = time.perf_counter()
        record = super()._record(plan, *times)
        self.record_s = time.perf_counter() - began
        return record


def ask(engine: Engine, batch: int, vocab_size: int, seed: int) -> None:
    """Queue a batch, and take the step that computes its prompts."""
    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    for i, prompt in enumerate(random_prompts(batch, PROMPT_TOKENS, vocab_size, seed)):
        engine.add(Request(i, tuple(prompt), params, NEW_TOKENS, seed=0))


def settings(batch: int) -> EngineSettings:
    """As `python -m engine.bench speed` has them."""
    num_blocks = batch * -(-(PROMPT_TOKENS + NEW_TOKENS) // 16)
    return EngineSettings(
        max_num_seqs=batch, max_num_batched_tokens=batch * PROMPT_TOKENS, num_blocks=num_blocks, max_queue=256
    )


def without(loaded: LoadedModel, batch: int, seed: int) -> list[float]:
    """Seconds of each decode step."""
    engine = SilentEngine(loaded.runner, settings(batch))
    ask(engine, batch, loaded.vocab_size, seed)
    engine.step()
    steps = []
    while engine.can_work:
        began = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - began)
    return steps


def with_records(loaded: LoadedModel, batch: int, seed: int, file: Path) -> tuple[list[float], list[float]]:
    """Seconds of each decode step, and those of them that its records took in the engine's thread."""
    service = EngineService(loaded.runner, None, settings(batch))
    service.engine = engine = TimedEngine(loaded.runner, settings(batch))
    recorder = TraceRecorder(service, file)
    service.add_listener(Metrics("model").observe)
    service.add_listener(recorder)
    ask(engine, batch, loaded.vocab_size, seed)
    service._step()
    steps, records = [], []
    while engine.can_work:
        began = time.perf_counter()
        service._step()
        steps.append(time.perf_counter() - began)
        records.append(engine.record_s + engine.publish_s)
    recorder.close()
    assert recorder.stopped is None
    return steps, records


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    loaded = load_model(open_model(args.model, "auto", args.dtype), "auto", 1, 16)
    print(f"{loaded.info['dtype']}, quantization {loaded.info['quantization']}, {torch.get_num_threads()} threads")
    rows = []
    for batch in args.batch:
        silent, told, own, ratios = [], [], [], []
        with tempfile.TemporaryDirectory() as folder:
            without(loaded, batch, 0)  # warms up
            for seed in range(args.rounds):
                file = Path(folder) / "trace.jsonl"
                if seed % 2:  # who comes second finds a warmer machine
                    (two, records), one = with_records(loaded, batch, seed, file), without(loaded, batch, seed)
                else:
                    one, (two, records) = without(loaded, batch, seed), with_records(loaded, batch, seed, file)
                silent.append(1e3 * statistics.median(one))
                told.append(1e3 * statistics.median(two))
                own.append(1e3 * statistics.median(records))
                ratios.append(told[-1] / silent[-1] - 1)
        middle = [statistics.median(values) for values in (silent, told, own)]
        rows.append([batch, *middle, f"{middle[2] / middle[1]:.1%}", f"{statistics.median(ratios):+.1%}"])
        rows[-1].append(", ".join(f"{ratio:+.1%}" for ratio in ratios))
    columns = ("batch", "without, ms", "with, ms", "records' own ms", "own share", "difference", "each round")
    print(common.table(columns, rows))


if __name__ == "__main__":
    main()
