"""Logits in, next tokens out: one vectorized pass over a batch in which every row keeps its own settings.

Owns penalties, filters, the random draw and log-probabilities. Never knows requests, scheduling, caches or text: a row
is plain values. What one row asks for changes no other row's token.

Order of operations, as in transformers: repetition penalty, presence and frequency penalty, minimum length,
temperature, top-k, top-p, min-p. Log-probabilities are of the raw distribution, before all of these.

Letters: R rows, V vocabulary, W ranked candidates.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MIN_LOGPROB = -9999.0
"""Stands for minus infinity in log-probabilities, which JSON cannot hold (vLLM's value)."""

CANDIDATE_WIDTHS = (256, 4096)
"""Most nuclei fit a few hundred tokens, and on a CPU a partial sort of 256 of 49,152 columns takes 0.1 ms where the
full sort takes 5; rows that need more are ranked again, wider."""


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
    def has_penalties(self) -> bool:
        """Whether tokens so far change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    @property
    def forbids_eos(self) -> bool:
        """Whether the answer is still too short to end."""
        return self.output_index < self.min_tokens and bool(self.eos_token_ids)

    def is_filtered(self, vocab_size: int) -> bool:
        """Whether top-k, top-p or min-p can remove a token."""
        return 0 < self.top_k < vocab_size or self.top_p < 1.0 or self.min_p > 0.0


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
    best, token_ids = changed.max(dim=1)  # (R,) each; a NaN anywhere in a row is its maximum
    drawn = [i for i, row in enumerate(rows) if not row.greedy]
    if drawn:
        where = torch.tensor(drawn, device=raw.device)
        token_ids[where] = _draw(changed[where], best[where], [rows[i] for i in drawn])
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
    """`raw` (R, V) itself where no row asks for anything, else a changed copy."""
    changed = raw
    if any(row.has_penalties for row in rows):
        changed = _penalized(raw, rows)
    forbidden = [(i, t) for i, row in enumerate(rows) if row.forbids_eos for t in row.eos_token_ids]
    forbidden = [(i, t) for i, t in forbidden if t < raw.shape[1]]
    if forbidden:
        changed = changed.clone() if changed is raw else changed
        at = torch.tensor(forbidden, device=raw.device).T
        changed[at[0], at[1]] = -math.inf
    return changed


def _penalized(raw: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Repetition penalty (Keskar et al. 2019, as transformers counts it) on prompt and answer, once per distinct token;
    presence and frequency penalty (OpenAI) on the answer."""
    entries: list[tuple[float, float, float, float]] = []  # row, token id, divisor, what comes off
    for i, row in enumerate(rows):
        if not row.has_penalties:
            continue
        counts = Counter(row.output_token_ids)
        seen = counts.keys() if row.repetition_penalty == 1.0 else counts.keys() | set(row.prompt_token_ids)
        for token_id in seen:
            count = counts[token_id]
            off = row.frequency_penalty * count + (row.presence_penalty if count else 0.0)
            if token_id < raw.shape[1]:
                entries.append((i, token_id, row.repetition_penalty, off))
    if not entries:
        return raw
    table = torch.tensor(entries, dtype=torch.float64).T.to(raw.device)  # (4, entries)
    at, divisor, less = table[:2].long(), table[2].float(), table[3].float()
    changed = raw.clone()
    seen_logits = raw[at[0], at[1]]
    changed[at[0], at[1]] = torch.where(seen_logits > 0, seen_logits / divisor, seen_logits * divisor) - less
    return changed


def _draw(logits: Tensor, best: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Token ids (R,) drawn from `logits` (R, V), whose row maxima are `best` (R,).

    The draw inverts the cumulative distribution, in float64, at the row's one uniform number: exact, and one number a
    row instead of one a column. A row's route depends on its own settings alone, so neighbours cannot change its token.
    """
    vocab_size = logits.shape[1]
    settings = torch.tensor(
        [
            (
                row.temperature,
                uniform(row.seed, row.output_index),
                row.top_p if row.top_p < 1.0 else math.inf,
                row.min_p,
                row.top_k if 0 < row.top_k < vocab_size else vocab_size,
            )
            for row in rows
        ],
        dtype=torch.float64,
    ).to(logits.device)  # (R, 5)
    # The maximum is taken off before dividing: a small temperature then underflows to weight 0 and never overflows.
    scaled = (logits - best[:, None]) / settings[:, :1].float()  # (R, V)
    token_ids = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    for filtered in (False, True):
        chosen = [i for i, row in enumerate(rows) if row.is_filtered(vocab_size) is filtered]
        if not chosen:
            continue
        where = torch.tensor(chosen, device=logits.device)
        draw = _draw_filtered if filtered else _draw_from_all
        token_ids[where] = draw(scaled[where], settings[where])
    return token_ids


def _draw_from_all(scaled: Tensor, settings: Tensor) -> Tensor:
    cumulative = scaled.exp().cumsum(dim=1, dtype=torch.float64)  # (R, V), in order of token id
    target = settings[:, 1:2] * cumulative[:, -1:]
    # right=True: the first column whose cumulative weight exceeds the target, so weight 0 is never drawn.
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=scaled.shape[1] - 1)


def _draw_filtered(scaled: Tensor, settings: Tensor) -> Tensor:
    """Token ids (R,) from the tokens that top-k, top-p and min-p leave.

    All three keep a beginning of the ranking (best first, of equals the lower id), so together they are one number a
    row: how many are kept. At least one is.
    """
    num_rows, vocab_size = scaled.shape
    token_ids = torch.zeros(num_rows, dtype=torch.long, device=scaled.device)
    total = scaled.exp().sum(dim=1, dtype=torch.float64)  # (R,)
    pending = torch.arange(num_rows, device=scaled.device)
    # On CUDA the full sort is cheap and asking whether a row is done would make the host wait.
    widths = () if scaled.is_cuda else tuple(w for w in CANDIDATE_WIDTHS if w < vocab_size)
    for width in widths:
        drawn, is_done = _draw_ranked(scaled[pending], total[pending], settings[pending], width)
        token_ids[pending] = drawn
        pending = pending[~is_done]
        if pending.numel() == 0:
            return token_ids
    token_ids[pending] = _draw_ranked(scaled[pending], total[pending], settings[pending], vocab_size)[0]
    return token_ids


def _draw_ranked(scaled: Tensor, total: Tensor, settings: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Draw among the best `width` columns: token ids (R,), and whether that many were enough to be exact (R,)."""
    uniforms, top_p, min_p, top_k = settings[:, 1:].T
    values, ids = _ranked(scaled, width)  # (R, W) each
    weights = values.double().exp()
    cumulative = weights.cumsum(dim=1)
    last_of_k = top_k.long().clamp(max=width)[:, None] - 1
    mass = torch.where(top_k < scaled.shape[1], cumulative.gather(1, last_of_k)[:, 0], total)
    in_nucleus = ((cumulative - weights) < (top_p * mass)[:, None]).sum(dim=1)
    likely_enough = (weights >= min_p[:, None]).sum(dim=1)
    num_kept = torch.minimum(torch.minimum(in_nucleus, likely_enough), top_k.long()).clamp(1, width)  # (R,)
    target = uniforms[:, None] * cumulative.gather(1, num_kept[:, None] - 1)
    rank = torch.searchsorted(cumulative, target, right=True)[:, 0]
    drawn = ids.gather(1, torch.minimum(rank, num_kept - 1)[:, None])[:, 0]
    # Among equals at the end of the ranking a partial sort picks arbitrary ones; then more columns have to be seen.
    is_inside = values.gather(1, num_kept[:, None] - 1)[:, 0] > values[:, -1]
    return drawn, is_inside & ((top_k <= width) | (top_k == scaled.shape[1]))


def _ranked(scaled: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The best `width` columns, best first and of equals the lower id: values and column numbers, (R, W) each."""
    if width >= scaled.shape[1]:
        return torch.sort(scaled, dim=1, descending=True, stable=True)
    ids = scaled.topk(width, dim=1, sorted=False).indices.sort(dim=1).values
    values, order = torch.sort(scaled.gather(1, ids), dim=1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _logprob_columns(raw: Tensor, token_ids: Tensor, rows: Sequence[SamplingRow], reported: Sequence[int]) -> Tensor:
    """(R, 1 + 2n) in float64: the token's log-probability, then n best token ids, then theirs; 0 in other rows."""
    most = min(max(rows[i].logprobs or 0 for i in reported), raw.shape[1])
    where = torch.tensor(reported, device=raw.device)
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
