"""Steady decode and prefill through the whole engine: scheduler, paged cache, model, sampling, records.

Decode: B requests with 64-token prompts, 64 new tokens each; counted are the steps in which all of them decode.
Prefill: one 512-token prompt. Beside it the same decode steps without the engine around the model, and how far the
served arithmetic is from float32.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.bench import accuracy, common
from engine.bench.engines import random_prompts
from engine.engine import Engine
from engine.loading import LoadedModel, load_model, open_model
from engine.scheduling.plan import ScheduledRequest, StepPlan
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings
from engine.torch_runner import TorchRunner

PROMPT_TOKENS, NEW_TOKENS, PREFILL_TOKENS = 64, 64, 512


@dataclass(slots=True)
class Seconds:
    """Of one batch size, round by round: all decode steps, and the same without the engine around the model."""

    engine: list[float]
    model_only: list[float]


def main(argv: Sequence[str]) -> None:
    """The command line."""
    parser = common.parser("speed", "Decode and prefill tokens per second through the whole engine.")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], metavar="B")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; medians are shown (default: 3)")
    parser.add_argument("--no-accuracy", action="store_true", help="leave out the comparison with float32")
    args = parser.parse_args(argv)
    if min(*args.batch, args.rounds) < 1:
        parser.error("--batch and --rounds must be at least 1")
    opened = open_model(args.model, args.device, args.dtype)
    loaded = load_model(opened, args.quantization, num_blocks=1, block_size=16)  # each engine makes its own pool
    decode, prefill = measure(loaded, args.batch, args.rounds, args.seed)
    result = common.about("speed", argv) | {
        "model": opened.source.name,
        **loaded.info,
        "threads": torch.get_num_threads(),
        **_figures(decode, prefill),
        "accuracy": None if args.no_accuracy else accuracy.against_float32(opened.source.path, loaded),
    }
    common.finish(result, _table(result), args.json)


def measure(
    loaded: LoadedModel, batches: Sequence[int], num_rounds: int, seed: int
) -> tuple[dict[int, Seconds], list[float]]:
    """Seconds of decoding by batch size, and of each prefill. One more round before warms up and isn't counted."""
    decode = {batch: Seconds([], []) for batch in batches}
    prefill: list[float] = []
    for round_number in range(num_rounds + 1):
        for batch in batches:
            engine_s, model_s = decode_seconds(loaded, batch, seed + round_number)
            if round_number:
                decode[batch].engine.append(engine_s)
                decode[batch].model_only.append(model_s)
        for repeat in range(3):
            seconds = prefill_seconds(loaded, seed + 3 * round_number + repeat)
            prefill += [seconds] if round_number else []
    return decode, prefill


def decode_seconds(loaded: LoadedModel, batch: int, seed: int) -> tuple[float, float]:
    """All steps in which `batch` requests decode: with the engine, and those steps' model alone."""
    settings = EngineSettings(
        max_num_seqs=batch,
        max_num_batched_tokens=batch * PROMPT_TOKENS,
        num_blocks=batch * -(-(PROMPT_TOKENS + NEW_TOKENS) // 16),
        max_queue=max(256, batch),
    )
    engine = Engine(loaded.runner, settings)
    for i, prompt in enumerate(random_prompts(batch, PROMPT_TOKENS, loaded.vocab_size, seed)):
        engine.add(_request(i, prompt, NEW_TOKENS))
    engine.step()
    engine_s = model_s = 0.0
    while engine.can_work:
        began = time.perf_counter()
        engine.step()
        engine_s += time.perf_counter() - began
        if engine.last_error is not None:
            raise engine.last_error
        model_s += _model_seconds(loaded.runner, engine.last_plan)
    return engine_s, model_s


def _model_seconds(runner: TorchRunner, plan: StepPlan) -> float:
    """The plan's forward pass, head and argmax once more: the same numbers into the same slots."""
    again = StepPlan(plan.step, tuple(map(_computed, plan.scheduled)))
    with torch.inference_mode():
        passes = runner.passes(again)
        _synchronize(runner)
        began = time.perf_counter()
        runner.next_tokens(passes)
        _synchronize(runner)
    return time.perf_counter() - began


def _computed(s: ScheduledRequest) -> ScheduledRequest:
    return ScheduledRequest(s.request, s.token_ids, s.start, s.block_ids, s.samples, s.is_decode)


def prefill_seconds(loaded: LoadedModel, seed: int) -> float:
    """One step that computes a whole prompt and samples its first token."""
    num_blocks = -(-(PREFILL_TOKENS + 1) // 16)
    settings = EngineSettings(num_blocks=num_blocks, max_num_batched_tokens=PREFILL_TOKENS)
    engine = Engine(loaded.runner, settings)
    engine.add(_request(0, random_prompts(1, PREFILL_TOKENS, loaded.vocab_size, seed)[0], 1))
    began = time.perf_counter()
    engine.step()
    seconds = time.perf_counter() - began
    if engine.last_error is not None:
        raise engine.last_error
    return seconds


def _request(request_id: int, prompt: Sequence[int], num_new_tokens: int) -> Request:
    params = SamplingParams(max_tokens=num_new_tokens, temperature=0.0, ignore_eos=True)
    return Request(request_id, tuple(prompt), params, num_new_tokens, seed=0)


def _synchronize(runner: TorchRunner) -> None:
    if runner.device.type == "cuda":
        torch.cuda.synchronize(runner.device)


def _figures(decode: dict[int, Seconds], prefill: list[float]) -> dict[str, Any]:
    steps = NEW_TOKENS - 1
    decode_tok_s, model_only, spread = {}, {}, {}
    for batch, seconds in decode.items():
        per_second = common.spread([batch * steps / s for s in seconds.engine])
        decode_tok_s[str(batch)] = per_second["median"]
        spread[str(batch)] = [per_second["min"], per_second["max"]]
        model_only[str(batch)] = common.spread([batch * steps / s for s in seconds.model_only])["median"]
    per_second = common.spread([PREFILL_TOKENS / s for s in prefill])
    return {
        "decode_tok_s": decode_tok_s,
        "decode_tok_s_spread": spread,
        "model_only_decode_tok_s": model_only,
        "prefill_tok_s": per_second["median"],
        "prefill_tok_s_spread": [per_second["min"], per_second["max"]],
    }


def _table(result: dict[str, Any]) -> str:
    rows: list[Sequence[object]] = []
    for batch, value in result["decode_tok_s"].items():
        alone = result["model_only_decode_tok_s"][batch]
        spread = result["decode_tok_s_spread"][batch]
        rows.append((f"decode, batch {batch}", value, *spread, alone, f"{alone / value - 1:+.1%}"))
    prefill = (result["prefill_tok_s"], *result["prefill_tok_s_spread"])
    rows.append((f"prefill, {PREFILL_TOKENS} tokens", *prefill, "", ""))
    text = common.table(("", "tokens/s", "min", "max", "model only", "engine costs"), rows)
    head = f"{result['model']}, {result['dtype']}, quantization {result['quantization']}, {result['device']}"
    return f"{head}\n\n{text}{accuracy.in_words(result['accuracy'])}"
