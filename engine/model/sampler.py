"""Logits in, next tokens out: one vectorized pass over a batch in which every row keeps its own settings.

Owns penalties, random numbers and log-probabilities; `engine.model.draw` has the filters and the draw. Never knows
requests, scheduling, caches or text: a row is plain values. What one row asks for changes no other row's token.

Order of operations, as in transformers: repetition penalty, presence and frequency penalty, minimum length,
temperature, top-k, top-p, min-p. Log-probabilities are of the raw distribution, before all of these.

Letters: R rows, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.model.draw import DrawSettings, draw_row, draw_rows, to_device

MIN_LOGPROB = -9999.0
"""Stands for minus infinity in log-probabilities, which JSON cannot hold (vLLM's value)."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What one row of logits is to be sampled with.

    `greedy` takes the most likely token; `temperature`, `top_p`, `top_k` and `min_p` are read only otherwise.
    `output_index` is how many tokens were already answered: with `seed` it fixes the draw. The token ids are
    only read, never kept. `eos_token_ids` are forbidden while `output_index` is below `min_tokens`. `logprobs` is how
    many alternatives to report: None for no log-probabilities at all, 0 for those of the sampled token alone.
    """

    greedy: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    output_index: int = 0
    prompt_token_ids: Sequence[int] = ()
    output_token_ids: Sequence[int] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    eos_token_ids: Collection[int] = ()
    logprobs: int | None = None

    @property
    def forbids_eos(self) -> bool:
        """Whether the answer is still too short to end."""
        return self.output_index < self.min_tokens and bool(self.eos_token_ids)


@dataclass(frozen=True, slots=True)
class SampleResult:
    """One row's token; `top_logprobs` are (token id, log-probability) of the raw distribution, best first."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


def sample(logits: Tensor, rows: Sequence[SamplingRow], vocab_size: int | None = None) -> list[SampleResult | str]:
    """Choose the next token of every row of `logits` (R, V'), float32.

    Columns from `vocab_size` on (padding of the embedding that no tokenizer knows) are never chosen and take no part
    in log-probabilities. `logits` is not changed. Returns, row by row, a result or words for what is wrong with that
    row's logits alone. The results are read from the device in one transfer, and nothing before waits for it.

    Raises ValueError when the number of rows and of logits differ.
    """
    if logits.shape[0] != len(rows):
        raise ValueError(f"{logits.shape[0]} rows of logits for {len(rows)} rows to sample")
    if not rows:
        return []
    raw = logits[:, :vocab_size].float()  # (R, V)
    changed = _with_penalties(raw, rows)
    drawn = [i for i, row in enumerate(rows) if not row.greedy]
    if len(drawn) < len(rows):
        best, token_ids = changed.max(dim=1)  # (R,) each; a NaN anywhere in a row is its maximum
    else:  # eight times faster than with the maximum's place
        best, token_ids = changed.amax(dim=1), torch.zeros(len(rows), dtype=torch.long, device=raw.device)
    if drawn:
        token_ids[to_device(drawn, np.int64, raw.device)] = _drawn(changed, best, rows, drawn)
    columns = [best.double()[:, None], token_ids.double()[:, None]]
    reported = [i for i, row in enumerate(rows) if row.logprobs is not None]
    if reported:
        columns.append(_logprob_columns(raw, token_ids, rows, reported))
    read = torch.cat(columns, dim=1).tolist()  # the one transfer; float64 holds every token id exactly
    return [_result(row, values) for row, values in zip(rows, read, strict=True)]


def uniform(seed: int, output_index: int) -> float:
    """The number in (0, 1) that decides token `output_index` of the request with this `seed`.

    Counter-based (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") with BLAKE2 as the mixing
    function: there is no generator state that batching, chunking or preemption could advance, and neither neighbouring
    seeds nor neighbouring indexes are correlated.
    """
    counter = (seed % 2**64).to_bytes(8, "little") + output_index.to_bytes(8, "little")
    digest = hashlib.blake2b(counter, digest_size=6, person=b"sampler.uniform").digest()
    return (int.from_bytes(digest, "little") + 0.5) / 2**48


def _with_penalties(raw: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """`raw` (R, V) itself where no row asks for anything, else a changed copy.

    Repetition penalty (Keskar et al. 2019, as transformers counts it) on prompt and answer, once per distinct token;
    presence and frequency penalty (OpenAI's) on the answer; no end of sequence before the minimum length.
    """
    repeated, answered, forbidden = [], [], []  # each (row, token ids, one number a token id or for all)
    for i, row in enumerate(rows):
        if row.repetition_penalty != 1.0:
            repeated.append((i, np.array([*row.prompt_token_ids, *row.output_token_ids]), row.repetition_penalty))
        if row.output_token_ids and (row.presence_penalty or row.frequency_penalty):
            token_ids, counts = np.unique(np.array(row.output_token_ids), return_counts=True)
            answered.append((i, token_ids, row.presence_penalty + row.frequency_penalty * counts))
        if row.forbids_eos:
            forbidden.append((i, np.array(list(row.eos_token_ids)), -math.inf))
    if not (repeated or answered or forbidden):
        return raw
    changed = raw.clone()
    if repeated:
        at, column, penalty = _flat(repeated, raw)
        before = raw[at, column]  # a token that occurs twice is read twice before it is written: it counts once
        changed[at, column] = torch.where(before > 0, before / penalty, before * penalty)
    if answered:
        at, column, penalty = _flat(answered, raw)
        changed[at, column] -= penalty
    if forbidden:
        at, column, nothing = _flat(forbidden, raw)
        changed[at, column] = nothing
    return changed


def _flat(parts: Sequence[tuple[int, np.ndarray, np.ndarray | float]], logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`parts` end to end, as rows, columns and numbers for `logits`; token ids that it has no column for left out."""
    table = np.hstack([np.stack(np.broadcast_arrays(float(row), ids, number)) for row, ids, number in parts])
    table = table[:, table[1] < logits.shape[1]]  # (3, n), float64: exact for every id, and one transfer for all
    rows, columns, numbers = to_device(table, np.float64, logits.device)
    return rows.long(), columns.long(), numbers.float()


def _drawn(logits: Tensor, best: Tensor, rows: Sequence[SamplingRow], drawn: Sequence[int]) -> Tensor:
    """Token ids of those rows that are drawn, from `logits` (R, V) whose row maxima are `best` (R,)."""
    vocab_size = logits.shape[1]
    settings = [
        DrawSettings(
            temperature=row.temperature,
            uniform=uniform(row.seed, row.output_index),
            top_p=row.top_p,
            min_p=row.min_p,
            top_k=row.top_k if 0 < row.top_k < vocab_size else vocab_size,
        )
        for row in (rows[i] for i in drawn)
    ]
    if logits.device.type == "cpu":
        array, maxima = logits.numpy(), best.tolist()
        return torch.tensor([draw_row(array[i], maxima[i], s) for i, s in zip(drawn, settings, strict=True)])
    where = to_device(drawn, np.int64, logits.device)
    return draw_rows(logits[where], best[where], settings)


def _logprob_columns(raw: Tensor, token_ids: Tensor, rows: Sequence[SamplingRow], reported: Sequence[int]) -> Tensor:
    """(R, 1 + 2n) in float64: the token's log-probability, then n best token ids, then theirs; 0 in other rows."""
    most = min(max(rows[i].logprobs or 0 for i in reported), raw.shape[1])
    where = to_device(reported, np.int64, raw.device)
    logprobs = raw[where].log_softmax(dim=1)  # (reported, V)
    top = logprobs.topk(most, dim=1)
    chosen = logprobs.gather(1, token_ids[where][:, None])
    columns = torch.zeros(len(rows), 1 + 2 * most, dtype=torch.float64, device=raw.device)
    columns[where] = torch.cat([chosen.double(), top.indices.double(), top.values.double()], dim=1)
    return columns


def _result(row: SamplingRow, values: list[float]) -> SampleResult | str:
    """One row's result from what was read: its maximum, its token id, and `_logprob_columns`'s part if there is one."""
    best, token_id = values[0], int(values[1])
    if not math.isfinite(best):
        found = "NaN" if math.isnan(best) else ("infinite" if best > 0 else "all minus infinity")
        return f"this request's logits are {found}, so no token can be chosen; the other requests go on"
    if row.logprobs is None:
        return SampleResult(token_id)
    most = (len(values) - 3) // 2
    ids, logprobs = values[3 : 3 + most], values[3 + most :]
    top = tuple((int(i), max(p, MIN_LOGPROB)) for i, p in zip(ids, logprobs, strict=True))[: row.logprobs]
    return SampleResult(token_id, max(values[2], MIN_LOGPROB), top)
