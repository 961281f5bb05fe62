"""The card's speed: decode and prefill through the whole engine, beside transformers and beside what the card can do.

Owns how each figure is measured. All of them are of the same random weights, in one process.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from engine.bench.engines import random_prompts
from engine.engine import Engine
from engine.kv.device_attention import why_not
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings
from engine.torch_runner import TorchRunner

PROMPT_TOKENS, NEW_TOKENS, PREFILL_TOKENS = 128, 64, 512


def synchronize(device: str) -> None:
    """Wait for the card."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def seconds(device: str, run: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest of a few runs, after one to warm up."""
    run()
    times = []
    for _ in range(repeats):
        synchronize(device)
        began = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - began)
    return min(times)


def roofline(device: str, dtype: torch.dtype, is_small: bool) -> dict[str, float]:
    """Bytes per second of a large copy (read and written), and operations per second of a large matrix product."""
    num_bytes = 2**24 if is_small else 2**31
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = seconds(device, lambda: target.copy_(source), 5)
    n = 256 if is_small else 8192
    a, b = torch.randn(n, n, device=device).to(dtype), torch.randn(n, n, device=device).to(dtype)
    product_s = seconds(device, lambda: a @ b, 5)
    return {"copy_bytes_s": 2 * num_bytes / copy_s, "matrix_flop_s": 2 * n**3 / product_s}


def decode(
    runner: TorchRunner, batch: int, seed: int, new_tokens: int = NEW_TOKENS, block_size: int = 16
) -> dict[str, Any]:
    """Steps in which `batch` requests decode: tokens/s, seconds a step and where they went, bytes a step must read."""
    vocab_size, device = runner.config.vocab_size, str(runner.device)
    settings = EngineSettings(
        max_num_seqs=batch,
        max_num_batched_tokens=batch * PROMPT_TOKENS,
        block_size=block_size,
        num_blocks=batch * -(-(PROMPT_TOKENS + new_tokens) // block_size),
        max_queue=max(256, batch),
        prefix_caching=False,
    )
    engine = Engine(runner, settings)
    for i, prompt in enumerate(random_prompts(batch, PROMPT_TOKENS, vocab_size, seed)):
        engine.add(request(i, prompt, new_tokens))
    engine.step()
    for _ in range(8):  # graphs are captured in the first of these
        engine.step()
    synchronize(device)
    records, context = [], 0
    began = time.perf_counter()
    while engine.can_work:
        records.append(engine.step())
        context += sum(s.context_length for s in engine.last_plan.scheduled)
        if engine.last_error is not None:
            raise engine.last_error
    step_s = (time.perf_counter() - began) / len(records)
    parts = ("schedule_s", "batch_s", "forward_s", "sample_s", "commit_s")
    c = runner.config
    kv_bytes = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * runner.dtype.itemsize
    model: Any = runner.model
    return {
        "tok_s": batch / step_s,
        "step_s": step_s,
        "parts_s": {part: sum(getattr(r.times, part) for r in records if r) / len(records) for part in parts},
        "step_bytes": model.head.nbytes + model.layers_nbytes + kv_bytes * context / len(records),
    }


def decode_by_route(
    runner: TorchRunner, route: str, block_size: int, batches: Sequence[int], seed: int, new_tokens: int
) -> dict[str, float] | str:
    """Decode tokens/s by another route at each batch size, on the same weights; or why it cannot be taken here."""
    other = TorchRunner(runner.model, 1, block_size, runner.dtype, runner.device, decode_route=route)
    reason = why_not(route, other.kv)
    if reason is not None:
        return reason
    found = {}
    for batch in batches:
        torch.compiler.reset()  # torch compiles an operator for eight shapes and no more
        found[str(batch)] = decode(other, batch, seed, new_tokens, block_size)["tok_s"]
        if other.graphs is None or other.graphs.route != route:
            raise RuntimeError(f"failed at batch {batch}; the log says why")
    return found


def prefill(runner: TorchRunner, seed: int, num_prompts: int) -> float:
    """Prompt tokens per second: `num_prompts` of 512 tokens in one step."""
    vocab_size = runner.config.vocab_size
    settings = EngineSettings(
        num_blocks=num_prompts * (PREFILL_TOKENS // 16 + 1),
        max_num_batched_tokens=num_prompts * PREFILL_TOKENS,
        max_num_seqs=num_prompts,
        prefix_caching=False,
    )
    best = float("inf")
    for repeat in range(4):
        engine = Engine(runner, settings)
        for i, prompt in enumerate(random_prompts(num_prompts, PREFILL_TOKENS, vocab_size, seed + repeat)):
            engine.add(request(i, prompt, 1))
        synchronize(str(runner.device))
        began = time.perf_counter()
        engine.step()
        best = min(best, time.perf_counter() - began)
        if engine.last_error is not None:
            raise engine.last_error
    return num_prompts * PREFILL_TOKENS / best


def mixed_prompts(count: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Prompts of 32 to 512 tokens."""
    rng = random.Random(seed)
    return [random_prompts(1, rng.randint(32, 512), vocab_size, seed + i)[0] for i in range(count)]


def serve(runner: TorchRunner, prompts: Sequence[Sequence[int]], new_tokens: int, slots: int) -> float:
    """Answer tokens per second of the whole engine, prompts included in the time."""
    num_blocks = slots * -(-(512 + new_tokens) // 16)
    settings = EngineSettings(
        max_num_seqs=slots, max_num_batched_tokens=4096, num_blocks=num_blocks, prefix_caching=False, max_queue=4096
    )
    elapsed = 0.0
    for _ in range(2):  # graphs are captured in the first run
        engine = Engine(runner, settings)
        for i, prompt in enumerate(prompts):
            engine.add(request(i, prompt, new_tokens))
        began = time.perf_counter()
        while engine.can_work:
            engine.step()
            if engine.last_error is not None:
                raise engine.last_error
        elapsed = time.perf_counter() - began
    return len(prompts) * new_tokens / elapsed


def request(request_id: int, prompt: Sequence[int], num_new_tokens: int) -> Request:
    """A greedy request that runs to its length."""
    params = SamplingParams(max_tokens=num_new_tokens, temperature=0.0, ignore_eos=True)
    return Request(request_id, tuple(prompt), params, num_new_tokens, seed=0)


@torch.inference_mode()
def peer_static(model: Any, device: str, batch: int, new_tokens: int, seed: int) -> dict[str, float]:
    """transformers `generate` on a static batch: decode tokens/s (by difference) and prompt tokens/s."""
    prompts = torch.tensor(random_prompts(batch, PROMPT_TOKENS, model.config.vocab_size, seed), device=device)

    def run(n: int) -> None:
        ones = torch.ones_like(prompts)
        model.generate(prompts, attention_mask=ones, max_new_tokens=n, min_new_tokens=n, do_sample=False)

    first, all_of_them = seconds(device, lambda: run(1), 2), seconds(device, lambda: run(new_tokens + 1), 2)
    return {"tok_s": batch * new_tokens / (all_of_them - first), "prompt_tok_s": batch * PROMPT_TOKENS / first}


def peer_continuous(model: Any, device: str, prompts: Sequence[Sequence[int]], new_tokens: int) -> float:
    """transformers' continuous batching: answer tokens per second, prompts included in the time.

    It takes one answer length for all, which is why `serve` is measured with one too.
    """
    options: dict[str, Any] = {"progress_bar": False}
    if device == "cpu":  # there it can't find out how much memory it may take
        sizes = {"num_blocks": 512, "max_batch_tokens": 512, "use_cuda_graph": False}
        known = inspect.signature(transformers.ContinuousBatchingConfig).parameters
        sizes["page_size" if "page_size" in known else "block_size"] = 16  # renamed after transformers 5.17
        options["continuous_batching_config"] = transformers.ContinuousBatchingConfig(**sizes)
    config = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)

    def run(some: Sequence[Sequence[int]]) -> int:
        outputs = model.generate_batch(inputs=[list(p) for p in some], generation_config=config, **options)
        return sum(len(output.generated_tokens) for output in outputs.values())

    run(prompts[:4])
    began = time.perf_counter()
    return run(prompts) / (time.perf_counter() - began)
