"""The runner that computes: a step plan through the model and the sampler, on the pool's tensors.

Owns the K/V tensors and the pass from a plan to sampled tokens. Never knows why a plan is as it is: policies, block
bookkeeping and what a token means to its request stay with the scheduler. The idea of one packed batch an iteration
is Orca's (Yu et al., 2022).
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

import torch
from torch import Tensor

from engine.decode_graphs import CUDAGraphCapture, DecodeGraphs, rehearse
from engine.kv.device_attention import why_not
from engine.kv.paged_attention import PagedAttention
from engine.kv.tensors import KVTensors
from engine.model.attention import Attend
from engine.model.config import ModelConfig
from engine.model.sampler import SamplingRow, sample
from engine.packing import (
    MIN_SPLIT_SLOTS,
    MIN_SPLIT_SLOTS_ON_CARD,
    BlockTables,
    PackedPass,
    pack,
    pack_by_role,
    to_device,
)
from engine.scheduling.plan import SampledToken, ScheduledRequest, StepOutput, StepPlan

log = logging.getLogger(__name__)


class Model(Protocol):
    """What the runner asks of a model; `engine.model.llama.Llama` is the plainest one."""

    config: ModelConfig

    def __call__(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """token_ids and positions (N,) -> hidden states (N, hidden)."""

    def logits(self, hidden: Tensor) -> Tensor:
        """(M, hidden) -> (M, vocab) float32."""


class TorchRunner:
    """`Runner` on torch. Call it always from one thread; it changes no global state.

    A model with two forms of its weights has an attribute `answer_form`: the model that computes an answer's tokens,
    where the model itself computes a prompt's. A model whose query weights hold the attention scale already says so
    with `attention_scale = 1.0`.
    """

    def __init__(
        self,
        model: Model,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        vocab_size: int | None = None,
        use_graphs: bool | None = None,
        decode_route: str = "gather",
    ) -> None:
        """`dtype` is that of keys and values, the model's own; `vocab_size` the tokenizer's largest id + 1: ids past it
        are never sampled. `use_graphs`: decode by CUDA graphs, by default on a card; elsewhere they are rehearsed.
        `decode_route`: how attention reads inside graphs, where it can; see engine.kv.device_attention.
        Raises MemoryError when the pool does not fit."""
        self.model, self.config = model, model.config
        self.answer_form: Model | None = getattr(model, "answer_form", None)
        self.scale = getattr(model, "attention_scale", self.config.head_dim**-0.5)
        self.dtype, self.device = dtype, torch.device(device)
        self.vocab_size = min(vocab_size or self.config.vocab_size, self.config.vocab_size)
        self._use_graphs = self.device.type == "cuda" if use_graphs is None else use_graphs
        self.decode_route = decode_route
        self._make_pool(num_blocks, block_size)

    def reset_pool(self, num_blocks: int, block_size: int) -> None:
        """See Runner. A pool of the same shape is kept: blocks are cleared when they are handed out."""
        if (self.kv.num_blocks, self.kv.block_size) == (num_blocks, block_size):
            self.tables = BlockTables(self.kv)
        else:
            self._make_pool(num_blocks, block_size)

    def _make_pool(self, num_blocks: int, block_size: int) -> None:
        c = self.config
        sizes = (c.num_hidden_layers, num_blocks, block_size, c.num_key_value_heads, c.head_dim)
        kv = KVTensors(*sizes, dtype=self.dtype, device=self.device)
        self.kv, self.tables = kv, BlockTables(kv)
        self.graphs: DecodeGraphs | None = None
        if self._use_graphs:
            capture = CUDAGraphCapture() if self.device.type == "cuda" else rehearse
            reason = why_not(self.decode_route, kv)
            if reason is not None:
                log.warning("Decode attention gathers instead of %s: %s", self.decode_route, reason)
            route = "gather" if reason is not None else self.decode_route
            self.graphs = DecodeGraphs(self.answer_form or self.model, kv, self.scale, c.vocab_size, capture, route)

    @torch.inference_mode()
    def warm_up(self, max_num_seqs: int) -> None:
        """Do once what the first steps would otherwise do: set up libraries, capture graphs for short contexts."""
        self.run(StepPlan(0, num_inactive_rows=1))
        if self.graphs is not None:
            self.graphs.warm_up(max_num_seqs)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepOutput:
        """See Runner. Raises whatever torch raises; then nothing was sampled and the step can be given up whole."""
        began = time.perf_counter()
        self.kv.copy(plan.copies)  # before clearing: a source may be handed out again in this very step
        copied_to = {c.dst for c in plan.copies}
        self.kv.clear([block_id for block_id in plan.new_block_ids if block_id not in copied_to])
        passes = self.passes(plan)
        packed = time.perf_counter()
        logits = self._logits(passes)  # (M, vocab)
        computed = time.perf_counter()
        sampled, errors = self._sample(logits, [s for _, one in passes for s in one.sampling])
        ended = time.perf_counter()
        return StepOutput(sampled, errors, packed - began, computed - packed, ended - computed)

    def passes(self, plan: StepPlan) -> list[tuple[Model, PackedPass]]:
        """What to compute with which form of the weights, in order; a pass without rows is left out."""
        if self.answer_form is None:
            min_split = MIN_SPLIT_SLOTS_ON_CARD if self.device.type == "cuda" else MIN_SPLIT_SLOTS
            packed: list[tuple[Model, PackedPass | None]] = [(self.model, pack(plan, self.tables, min_split))]
        else:
            prompts, answers = pack_by_role(plan, self.tables)
            packed = [(self.model, prompts), (self.answer_form, answers)]
        return [(model, one) for model, one in packed if one is not None]

    def hidden(self, model: Model, one: PackedPass) -> Tensor:
        """Run one pass: hidden states of all its rows (N, hidden). Its keys and values are stored."""
        one = one.to(self.device)
        token_ids, positions, slots = one.numbers.unbind()
        attend = PagedAttention(self.kv, slots, one.decode, one.chunks, self.scale)
        return model(token_ids, positions, attend)

    def next_tokens(self, passes: list[tuple[Model, PackedPass]]) -> list[int]:
        """The most likely next tokens of all rows that sample: a step with nothing around the model."""
        logits = self._logits(passes)
        return [] if logits is None else logits.argmax(dim=-1).tolist()

    def _logits(self, passes: list[tuple[Model, PackedPass]]) -> Tensor | None:
        """(M, vocab) of the rows that sample, pass after pass; None when none does."""
        logits = None
        if self.graphs is not None and [model for model, _ in passes] == [self.graphs.model]:
            logits = self.graphs.logits(passes[0][1])
        if logits is not None:
            one = passes[0][1]
            is_all = len(one.sampling) == one.num_rows
            return logits if is_all else logits.index_select(0, to_device(one.sample_rows, self.device))
        hidden = [self.hidden(m, one).index_select(0, to_device(one.sample_rows, self.device)) for m, one in passes]
        rows = torch.cat(hidden) if hidden else torch.empty(0)
        return self.model.logits(rows) if len(rows) else None

    def _sample(
        self, logits: Tensor | None, sampling: list[ScheduledRequest]
    ) -> tuple[dict[int, SampledToken], dict[int, str]]:
        if logits is None:
            return {}, {}
        results = sample(logits, [_sampling_row(s) for s in sampling], self.vocab_size)
        sampled: dict[int, SampledToken] = {}
        errors: dict[int, str] = {}
        for s, result in zip(sampling, results, strict=True):
            if isinstance(result, str):
                errors[s.request_id] = result
            else:
                sampled[s.request_id] = SampledToken(result.token_id, result.logprob, result.top_logprobs)
        return sampled, errors


def _sampling_row(scheduled: ScheduledRequest) -> SamplingRow:
    """A request's settings as plain values. The draw depends on its seed and the length of its answer, nothing else."""
    request, params = scheduled.request, scheduled.request.params
    return SamplingRow(
        greedy=params.is_greedy,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=request.seed,
        output_index=len(request.output_token_ids),
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=request.output_token_ids,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        min_tokens=params.min_tokens,
        eos_token_ids=() if params.ignore_eos else request.eos_token_ids,
        logprobs=params.logprobs,
    )
