"""The random draw: which token one number between 0 and 1 means under temperature, top-k, top-p and min-p.

Owns the filters and the inversion of the cumulative distribution, twice: for a row in numpy, which is fast on a CPU,
and for all rows at once in torch, which never makes the host wait for a device. Both rank tokens best first and, of
equals, the lower id first, as argmax does; all three filters keep a beginning of that ranking and at least its first
token. Never knows penalties, seeds or requests.

Letters: R rows, V vocabulary, W ranked candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

CANDIDATE_WIDTHS = (256, 4096)
"""How many of the best tokens to rank at first, and then: most nuclei are small, and a partial sort of 49,152 columns
takes a third of the full one where numpy has vector instructions for both, a hundredth where it has not."""

BLOCK = 256
"""Columns summed at once when a whole row is drawn from: a running sum over all of them takes three times as long."""

MAX_TEMPERATURE = 1e30
"""Is uniform in float32 and leaves 0 for impossible tokens; infinity would make them NaN."""


class DrawSettings(NamedTuple):
    """One row's draw. `top_k` is the vocabulary's size when off, `uniform` the random number in (0, 1)."""

    temperature: float
    uniform: float
    top_p: float
    min_p: float
    top_k: int

    def is_filtered(self, vocab_size: int) -> bool:
        """Whether top-k, top-p or min-p can remove a token."""
        return self.top_k < vocab_size or self.top_p < 1.0 or self.min_p > 0.0


def draw_row(logits: np.ndarray, best: float, settings: DrawSettings) -> int:
    """The token drawn from `logits` (V,), float32, whose maximum is `best`. A row that is not finite gives 0."""
    if not math.isfinite(best):
        return 0
    with np.errstate(over="ignore", under="ignore"):
        if not settings.is_filtered(logits.size):
            return _invert(np.exp(_scaled(logits, best, settings.temperature)), settings.uniform)
        for width in (*CANDIDATE_WIDTHS, logits.size):
            drawn = _draw_ranked(logits, best, settings, min(width, logits.size))
            if drawn is not None:
                return drawn
    raise AssertionError("the whole vocabulary is always enough")


def draw_rows(logits: Tensor, best: Tensor, settings: Sequence[DrawSettings]) -> Tensor:
    """Token ids (R,) drawn from `logits` (R, V), float32, whose row maxima are `best` (R,).

    The same draw as `draw_row`, up to the rounding of sums. A row's route depends on its own settings alone, so
    neighbours cannot change its token.
    """
    table = to_device(settings, np.float64, logits.device)  # (R, 5)
    temperature = table[:, :1].clamp(max=MAX_TEMPERATURE).float()
    scaled = (logits - best[:, None]) / temperature  # (R, V)
    token_ids = torch.zeros(len(settings), dtype=torch.long, device=logits.device)
    for filtered, draw in ((False, _draw_all), (True, _draw_filtered)):
        chosen = [i for i, s in enumerate(settings) if s.is_filtered(logits.shape[1]) is filtered]
        if chosen:
            where = to_device(chosen, np.int64, logits.device)
            token_ids[where] = draw(scaled[where], table[where])
    return token_ids


def to_device(values: npt.ArrayLike, dtype: npt.DTypeLike, device: torch.device) -> Tensor:
    """`values` as a tensor; pinned on its way to CUDA, as a copy from ordinary memory would wait for the device.

    By way of numpy, which reads a thousand Python numbers in 20 microseconds where torch takes 100.
    """
    tensor = torch.from_numpy(np.asarray(values, dtype=dtype))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _scaled(logits: np.ndarray, best: float, temperature: float) -> np.ndarray:
    """Logits whose maximum is 0, over the temperature: small temperatures then underflow to weight 0 and none
    overflows."""
    scaled = logits - logits.dtype.type(best)
    scaled /= logits.dtype.type(min(temperature, MAX_TEMPERATURE))
    return scaled


def _invert(weights: np.ndarray, uniform: float) -> int:
    """The first column whose cumulative weight exceeds `uniform` of the total, in order of token id. First the block of
    columns, then the column: exact, in float64. Weight 0 is never drawn."""
    blocks = np.add.reduceat(weights, np.arange(0, weights.size, BLOCK), dtype=np.float64).cumsum()
    target = uniform * blocks[-1]
    block = int(np.searchsorted(blocks, target, side="right"))
    before = blocks[block - 1] if block else 0.0
    inside = before + weights[block * BLOCK : (block + 1) * BLOCK].cumsum(dtype=np.float64)
    column = int(np.searchsorted(inside, target, side="right"))
    if column < inside.size:
        return block * BLOCK + column
    return block * BLOCK + int(np.flatnonzero(weights[block * BLOCK : (block + 1) * BLOCK])[-1])  # by rounding


def _draw_ranked(logits: np.ndarray, best: float, settings: DrawSettings, width: int) -> int | None:
    """Draw among the best `width` tokens; None if it takes more of them to know what the filters keep."""
    vocab_size = logits.size
    top_k_is_on = settings.top_k < vocab_size
    if top_k_is_on and settings.top_k > width:
        return None
    tail = logits if width == vocab_size else np.partition(logits, vocab_size - width)[vocab_size - width :]
    values = np.sort(tail)[::-1]  # (W,), best first
    weights = np.exp(_scaled(values, best, settings.temperature).astype(np.float64))
    cumulative = weights.cumsum()
    num_kept = min(settings.top_k, int(np.count_nonzero(weights >= settings.min_p)))
    if settings.top_p < 1.0:
        if top_k_is_on:
            mass = cumulative[settings.top_k - 1]
        else:
            mass = np.exp(_scaled(logits, best, settings.temperature)).sum(dtype=np.float64)
        num_kept = min(num_kept, int(np.searchsorted(cumulative - weights, settings.top_p * mass)))
    num_kept = max(num_kept, 1)
    if num_kept == width < min(settings.top_k, vocab_size):
        return None
    target = settings.uniform * cumulative[num_kept - 1]
    rank = min(int(np.searchsorted(cumulative, target, side="right")), num_kept - 1)
    # Values are ranked, not columns, which is faster; the column is looked up among those with this value.
    rank_among_equals = rank - int(np.count_nonzero(values > values[rank]))
    return int(np.flatnonzero(logits == values[rank])[rank_among_equals])


def _draw_all(scaled: Tensor, table: Tensor) -> Tensor:
    cumulative = scaled.exp().cumsum(dim=1, dtype=torch.float64)  # (R, V), in order of token id
    target = table[:, 1:2] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=scaled.shape[1] - 1)


def _draw_filtered(scaled: Tensor, table: Tensor) -> Tensor:
    uniform, top_p, min_p, top_k = table[:, 1:].T  # (R,) each
    values, ids = torch.sort(scaled, dim=1, descending=True, stable=True)  # (R, V) each
    weights = values.double().exp()
    cumulative = weights.cumsum(dim=1)
    of_all = scaled.exp().sum(dim=1, keepdim=True, dtype=torch.float64)
    mass = torch.where(top_k[:, None] < scaled.shape[1], cumulative.gather(1, top_k.long()[:, None] - 1), of_all)
    in_nucleus = ((cumulative - weights < top_p[:, None] * mass) | (top_p[:, None] >= 1.0)).sum(dim=1)
    likely_enough = (weights >= min_p[:, None]).sum(dim=1)
    num_kept = torch.minimum(torch.minimum(in_nucleus, likely_enough), top_k.long()).clamp(min=1)[:, None]  # (R, 1)
    target = uniform[:, None] * cumulative.gather(1, num_kept - 1)
    rank = torch.searchsorted(cumulative, target, right=True)
    return ids.gather(1, torch.minimum(rank, num_kept - 1))[:, 0]
