"""The card's right answers: transformers' tokens in float32, near-best tokens in lower precision, graphs or not.

Every check answers with None, or with words for what was wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from engine.bench.engines import random_prompts, run_to_end
from engine.bench.gpu_model import our_runner, reference_model
from engine.kv.device_attention import CANDIDATES, reader, why_not
from engine.kv.paged_attention import Chunk, DecodeGroup, PagedAttention, ReferencePagedAttention, table_width
from engine.kv.tensors import KVTensors
from engine.settings import KV_LAYOUTS, POLICIES, EngineSettings

PROMPT_LENGTHS = (1, 7, 16, 33, 64, 150, 290)
NEW_TOKENS = 16
MAX_MARGIN = 1.5
"""Nats by which a token chosen in lower precision may be less likely than float32's best. Rounding in a model with such
large weights was measured to cost up to 0.7; a missing or foreign key costs ten."""

Check = Callable[[], str | None]


def checks(device: str, low_dtype: torch.dtype, seed: int) -> Iterator[tuple[str, Check]]:
    """Name and check, in the order in which a fault should be looked for."""
    for dtype in (torch.float32, low_dtype):
        yield f"attention, {_name(dtype)}", partial(attention, device, dtype, seed)
    model = reference_model("small", device, torch.float32, seed, initializer_range=0.3)
    prompts = [p for n in PROMPT_LENGTHS for p in random_prompts(1, n, model.config.vocab_size, seed + n)]
    expected = [_oracle(model, prompt, device) for prompt in prompts]
    for policy, layout, graphs in itertools.product(POLICIES, KV_LAYOUTS, (False, True)):
        words = f"{policy}, {layout}, graphs {'on' if graphs else 'off'}"
        run = Run(model, device, _settings(policy, layout), prompts, graphs)
        yield f"float32 tokens, {words}", partial(_tokens, run, expected)
        yield f"{_name(low_dtype)} tokens, {words}", partial(_near_best, run, low_dtype)
    for route, block_size in CANDIDATES:
        if why_not(route, KVTensors(1, 1, block_size, 2, 64, low_dtype, device)) is not None:
            continue
        words = f"{route}, blocks of {block_size}"
        yield f"decode attention by {words}", partial(decode_attention, device, low_dtype, seed, route, block_size)
        if route != "flex":  # which compiles for every shape of a run
            run = Run(model, device, _settings("mixed", "paged", block_size), prompts, True, route)
            yield f"{_name(low_dtype)} tokens by {words}", partial(_near_best, run, low_dtype)


def _settings(policy: str, layout: str, block_size: int = 16) -> EngineSettings:
    """A budget that cuts prompts into chunks, and fewer slots than requests."""
    return EngineSettings(
        policy=policy,
        kv_layout=layout,
        block_size=block_size,
        num_blocks=120,
        max_num_seqs=4,
        max_num_batched_tokens=100,
        cohort_wait_s=0.0,
    )


@dataclass(frozen=True, slots=True)
class Run:
    """Prompts to be answered by our engine with the weights of `model`, transformers' own class."""

    model: Any
    device: str
    settings: EngineSettings
    prompts: list[list[int]]
    graphs: bool
    route: str = "gather"

    def answers(self, dtype: torch.dtype) -> list[list[int]]:
        """Of each prompt in order. Raises RuntimeError when decoding fell back to another route."""
        runner = our_runner(self.model, self.device, dtype, self.graphs, self.route)
        answers = run_to_end(runner, self.settings, self.prompts, [NEW_TOKENS] * len(self.prompts))[0]
        if runner.graphs is not None and runner.graphs.route != self.route:
            raise RuntimeError(f"decode attention by {self.route} failed; the log says why")
        return answers


def _tokens(run: Run, expected: list[list[int]]) -> str | None:
    for prompt, answer, right in zip(run.prompts, run.answers(torch.float32), expected, strict=True):
        if answer != right:
            at = next(i for i, (a, b) in enumerate(zip(answer, right, strict=True)) if a != b)
            return f"prompt of {len(prompt)} tokens: token {at} is {answer[at]}, transformers says {right[at]}"
    return None


def _near_best(run: Run, dtype: torch.dtype) -> str | None:
    for prompt, answer in zip(run.prompts, run.answers(dtype), strict=True):
        sequence = torch.tensor([prompt + answer], device=run.device)
        logprobs = run.model(sequence).logits[0].float().log_softmax(-1)[len(prompt) - 1 : -1]  # (new, vocab)
        chosen = logprobs.gather(1, torch.tensor(answer, device=run.device)[:, None])[:, 0]
        margin = (logprobs.amax(1) - chosen).max().item()
        if not margin <= MAX_MARGIN:
            words = f"prompt of {len(prompt)} tokens: a token is {margin:.2f} nats less likely than the best"
            return f"{words}, {MAX_MARGIN} allowed"
    return None


@torch.inference_mode()
def _oracle(model: Any, prompt: Sequence[int], device: str) -> list[int]:
    ids = torch.tensor([prompt], device=device)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False)
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer


@torch.inference_mode()
def attention(device: str, dtype: torch.dtype, seed: int) -> str | None:
    """Paged attention as it is computed here against its plain form: decode rows, fresh and continued chunks."""
    torch.manual_seed(seed)
    heads, kv_heads, dim, size = 8, 2, 64, 16
    kv = KVTensors(1, 200, size, kv_heads, dim, dtype, device)
    kv.storage.normal_()
    kv.clear([kv.null_block])
    lengths = [5, 300, 77]
    width = table_width(max(lengths), size)
    tables = torch.randperm(200, device=device)[: 3 * width].view(3, width)
    group = DecodeGroup(0, tables, torch.tensor(lengths, device=device))
    first = torch.randperm(200, device=device)[: table_width(200, size)]
    second = torch.randperm(200, device=device)[: table_width(140, size)]
    chunks = [Chunk(3, 0, 200, 0, first), Chunk(203, 100, 40, 3, second)]
    num_rows = 246
    q, k, v = (torch.randn(num_rows, n, dim, dtype=dtype, device=device) for n in (heads, kv_heads, kv_heads))
    slots = torch.full((num_rows,), kv.trash_slot, device=device)  # what is read was there before
    fast, plain = (
        kind(kv, slots, [group], chunks, dim**-0.5)(0, q, k, v).float()
        for kind in (PagedAttention, ReferencePagedAttention)
    )
    real = torch.arange(num_rows) < 243
    error = (fast - plain)[real].abs().max().item()
    allowed = 1e-4 if dtype == torch.float32 else 3e-2
    return None if error <= allowed else f"largest difference {error:.2g}, {allowed:.0e} allowed"


@torch.inference_mode()
def decode_attention(device: str, dtype: torch.dtype, seed: int, route: str, block_size: int) -> str | None:
    """Decode rows by a route that reads in place against their plain form."""
    torch.manual_seed(seed)
    heads, kv_heads, dim, lengths = 8, 2, 64, [5, 300, 77, 1, 256]
    width = table_width(max(lengths), block_size)
    kv = KVTensors(1, len(lengths) * width, block_size, kv_heads, dim, dtype, device)
    kv.storage.normal_()
    kv.clear([kv.null_block])
    tables = torch.randperm(kv.num_blocks, device=device).view(len(lengths), width)
    group = DecodeGroup(0, tables, torch.tensor(lengths, device=device))
    q, k, v = (torch.randn(len(lengths), n, dim, dtype=dtype, device=device) for n in (heads, kv_heads, kv_heads))
    slots = torch.full((len(lengths),), kv.trash_slot, device=device)  # what is read was there before
    plain = ReferencePagedAttention(kv, slots, [group], [], dim**-0.5)(0, q, k, v).float()
    in_place = PagedAttention(kv, slots, [group], [], dim**-0.5, decode_reader=reader(route))(0, q, k, v).float()
    error = (in_place - plain).abs().max().item()
    return None if error <= 3e-2 else f"largest difference {error:.2g}, 3e-02 allowed"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
