"""Offline generation: the road from one sequence without a cache to a static batch with one.

Four of the five inference modes as greedy loops over `forward`, each to be read beside the one before it; the fifth,
continuous batching, is the engine itself. Owns padding, logical positions and inactive slots. Never knows text or
sampling: these loops exist to be compared, with each other and with the engine.

Physical and logical: a row of a static batch is `PAD PAD a b c EOS X X`. Its logical sequence is `a b c EOS`; PAD fills
the front so that all rows end together, X are inactive slots behind the end, computed and thrown away.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.model.attention import Attend, DenseCacheAttention, FullAttention, PaddedAttention
from engine.model.llama import Llama

PAD_TOKEN_ID = 0
"""Any id does: the mask hides what padding computes."""


@dataclass(slots=True)
class Generation:
    """What one call answered, and the work it took.

    `token_ids`: the new tokens of each prompt, an end-of-sequence id included. `num_computed_tokens` counts the tokens
    that went through the model, `num_wasted_tokens` those among them that were padding or inactive slots.
    """

    token_ids: list[list[int]]
    num_computed_tokens: int = 0
    num_wasted_tokens: int = 0
    num_steps: int = 0


@torch.inference_mode()
def singleton_no_kv(
    model: Llama, prompts: Sequence[Sequence[int]], max_new_tokens: int, eos_token_ids: Collection[int] = ()
) -> Generation:
    """One prompt after the other, the whole sequence recomputed for every token: right, and quadratic."""
    _check(model, prompts, max_new_tokens)
    result = Generation([[] for _ in prompts])
    for prompt, answer in zip(prompts, result.token_ids, strict=True):
        while not _has_ended(answer, max_new_tokens, eos_token_ids):
            sequence = _tensor(model, [*prompt, *answer])  # (N,)
            positions = torch.arange(len(sequence), device=sequence.device)  # (N,)
            hidden = model(sequence, positions, FullAttention())  # (N, hidden)
            answer += _most_likely(model, hidden[-1:])
            result.num_computed_tokens += len(sequence)
            result.num_steps += 1
    return result


@torch.inference_mode()
def singleton_kv(
    model: Llama, prompts: Sequence[Sequence[int]], max_new_tokens: int, eos_token_ids: Collection[int] = ()
) -> Generation:
    """One prompt after the other with a cache: prefill computes the prompt once, decode one token at a time."""
    _check(model, prompts, max_new_tokens)
    result = Generation([[] for _ in prompts])
    for prompt, answer in zip(prompts, result.token_ids, strict=True):
        cache = _dense_cache(model, [0], len(prompt) + max_new_tokens)
        new_tokens = _tensor(model, prompt)  # (N,): the prompt first, then each newest token
        while True:
            start = cache.current_length()
            positions = torch.arange(start, start + len(new_tokens), device=new_tokens.device)  # (N,)
            hidden = model(new_tokens, positions, cache)  # (N, hidden)
            answer += _most_likely(model, hidden[-1:])
            result.num_computed_tokens += len(new_tokens)
            result.num_steps += 1
            if _has_ended(answer, max_new_tokens, eos_token_ids):
                break
            new_tokens = _tensor(model, answer[-1:])
    return result


def static_batch_no_kv(
    model: Llama, prompts: Sequence[Sequence[int]], max_new_tokens: int, eos_token_ids: Collection[int] = ()
) -> Generation:
    """All prompts in lock-step as a left-padded rectangle, everything recomputed for every token."""
    return _static_batch(model, prompts, max_new_tokens, eos_token_ids, use_cache=False)


def static_batch_kv(
    model: Llama, prompts: Sequence[Sequence[int]], max_new_tokens: int, eos_token_ids: Collection[int] = ()
) -> Generation:
    """All prompts in lock-step with one rectangular cache: a step computes one token per row, ended rows included."""
    return _static_batch(model, prompts, max_new_tokens, eos_token_ids, use_cache=True)


@torch.inference_mode()
def _static_batch(
    model: Llama,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    eos_token_ids: Collection[int],
    use_cache: bool,
) -> Generation:
    """Run the batch until its longest member ends; both static modes differ only in what a step feeds the model."""
    _check(model, prompts, max_new_tokens)
    longest = max(len(prompt) for prompt in prompts)
    padding = [longest - len(prompt) for prompt in prompts]
    rectangle = _tensor(
        model, [[PAD_TOKEN_ID] * count + list(prompt) for count, prompt in zip(padding, prompts, strict=True)]
    )  # (B, longest)
    num_padding = _tensor(model, padding)  # (B,)
    cache = _dense_cache(model, padding, longest + max_new_tokens) if use_cache else None
    result = Generation([[] for _ in prompts])
    is_finished = [False] * len(prompts)
    new_columns, start = rectangle, 0  # (B, S), and the physical position of its first column
    while True:
        attend: Attend = cache or PaddedAttention(num_padding)
        positions = logical_positions(num_padding, start, new_columns.shape[1])  # (B, S)
        hidden = model(new_columns.flatten(), positions.flatten(), attend)  # (B * S, hidden)
        newest = _most_likely(model, hidden.view(*new_columns.shape, -1)[:, -1])  # B ids
        result.num_computed_tokens += new_columns.numel()
        ends = [longest + len(answer) - ended for answer, ended in zip(result.token_ids, is_finished, strict=True)]
        result.num_wasted_tokens += _num_wasted(padding, ends, start, start + new_columns.shape[1])
        result.num_steps += 1
        for row, token in enumerate(newest):
            if not is_finished[row]:  # an inactive slot's token is nobody's
                result.token_ids[row].append(token)
                is_finished[row] = _has_ended(result.token_ids[row], max_new_tokens, eos_token_ids)
        if all(is_finished):
            return result
        newest_column = _tensor(model, newest)[:, None]  # (B, 1)
        if use_cache:
            start += new_columns.shape[1]
            new_columns = newest_column
        else:
            new_columns = torch.cat((new_columns, newest_column), dim=1)


def logical_positions(num_padding_tokens: Tensor, start: int, num_new: int) -> Tensor:
    """Each row's own token numbers for physical columns `start` onwards: (B, S); padding stays at 0, unseen."""
    physical = torch.arange(start, start + num_new, device=num_padding_tokens.device)  # (S,)
    return (physical[None, :] - num_padding_tokens[:, None]).clamp(min=0)


def _num_wasted(padding: Sequence[int], ends: Sequence[int], start: int, end: int) -> int:
    """Of the rectangle's physical columns `start` to `end`: padding before a row's tokens, inactive slots behind."""
    useful = sum(max(0, min(end, last) - max(start, first)) for first, last in zip(padding, ends, strict=True))
    return len(padding) * (end - start) - useful


def _most_likely(model: Llama, hidden: Tensor) -> list[int]:
    """The greedy next token of each row of `hidden` (M, hidden)."""
    tokens: list[int] = model.logits(hidden).argmax(dim=-1).tolist()
    return tokens


def _has_ended(answer: Sequence[int], max_new_tokens: int, eos_token_ids: Collection[int]) -> bool:
    return len(answer) >= max_new_tokens or bool(answer and answer[-1] in eos_token_ids)


def _dense_cache(model: Llama, padding: Sequence[int], max_length: int) -> DenseCacheAttention:
    return DenseCacheAttention(model.config, _tensor(model, padding), max_length, model.embed_tokens.weight.dtype)


def _tensor(model: Llama, values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=model.embed_tokens.weight.device)


def _check(model: Llama, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    if not prompts or not all(prompts):
        raise ValueError("there must be at least one prompt, and no empty one")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    longest, limit = max(map(len, prompts)) + max_new_tokens, model.config.max_position_embeddings
    if longest > limit:
        raise ValueError(f"prompt + max_new_tokens is {longest}, the model's context is {limit}")
