"""The draw's two ways, a row in numpy and all rows in torch, against each other and on the edges of the number line."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from engine.model import draw
from engine.model.draw import DrawSettings, draw_row, draw_rows
from engine.model.sampler import SamplingRow, sample, uniform

SIZES = [7, 256, 260, 513, 6000]
FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 300},
    {"top_p": 0.0},
    {"top_p": 0.6},
    {"top_p": 0.999},
    {"min_p": 0.02},
    {"min_p": 1.0},
    {"top_k": 40, "top_p": 0.8, "min_p": 0.01},
    {"top_k": 5000, "top_p": 0.93},
]


def settings_for(size: int, uniform: float, temperature: float = 1.0, top_k: int = 0, **others: float) -> DrawSettings:
    defaults = {"top_p": 1.0, "min_p": 0.0} | others
    return DrawSettings(temperature, uniform, top_k=top_k if 0 < top_k < size else size, **defaults)


def kinds_of_logits(size: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    normal = torch.randn(size, generator=generator)
    with_gaps = normal.clone()
    with_gaps[::3] = -math.inf
    return {
        "flat": torch.zeros(size),
        "spread": normal * 0.2,
        "peaked": normal * 6,
        "tied": (normal * 2).round(),
        "gaps": with_gaps,
        "large": normal * 1e30,
    }


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_both_ways_draw_the_same(size, filters):
    rows = [
        (logits, settings_for(size, uniform(seed, 0), temperature=temperature, **filters))
        for logits in kinds_of_logits(size).values()
        for seed, temperature in itertools.product(range(4), (0.3, 1.0, 5.0))
    ]
    matrix = torch.stack([logits for logits, _ in rows])
    together = draw_rows(matrix, matrix.amax(dim=1), [s for _, s in rows])
    alone = [draw_row(logits.numpy(), logits.max().item(), s) for logits, s in rows]
    assert together.tolist() == alone


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("edge", [0.5 / 2**48, 1 - 0.5 / 2**48])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_the_ends_of_the_number_line_draw_possible_tokens(size, edge, filters):
    for logits in kinds_of_logits(size).values():
        s = settings_for(size, edge, **filters)
        for drawn in (
            draw_row(logits.numpy(), logits.max().item(), s),
            int(draw_rows(logits[None], logits.amax()[None], [s])[0]),
        ):
            assert logits[drawn] > -math.inf


def test_whole_rows_are_drawn_from_in_order_of_token_id():
    """The inverse of the cumulative distribution, column by column, over several blocks and a broken last one."""
    size = 3 * draw.BLOCK + 11
    logits = torch.zeros(size).numpy()
    drawn = [draw_row(logits, 0.0, settings_for(size, (column + 0.5) / size)) for column in range(size)]
    assert drawn == list(range(size))


def test_filtered_rows_are_drawn_from_best_first():
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.3], dtype=np.float32))
    best = float(logits.max())
    drawn = [draw_row(logits, best, settings_for(4, u, top_k=3)) for u in (0.01, 0.43, 0.45, 0.76, 0.79, 0.99)]
    assert drawn == [1, 1, 3, 3, 2, 2]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_rows_that_are_not_finite_give_a_valid_column(bad, filters):
    """The caller reports them; nothing may be raised, nor an index be out of range."""
    logits = torch.full((260,), bad)
    s = settings_for(260, 0.5, **filters)
    assert draw_row(logits.numpy(), bad, s) == 0
    assert 0 <= int(draw_rows(logits[None], torch.tensor([bad]), [s])[0]) < 260


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_host_waits_once():
    rows = [
        SamplingRow(greedy=i % 4 == 0, seed=i, logprobs=i % 3 or None, repetition_penalty=1.1, prompt_token_ids=(5, 6))
        if i % 2
        else SamplingRow(greedy=False, seed=i, top_p=0.9, top_k=50, min_tokens=1, eos_token_ids=(2,))
        for i in range(16)
    ]
    logits = torch.randn(16, 6000, generator=torch.Generator().manual_seed(0))
    on_cpu = sample(logits, rows)
    on_cuda = logits.cuda()
    sample(on_cuda, rows)
    torch.cuda.synchronize()
    waits = []
    to_list = torch.Tensor.tolist

    def counted(tensor):
        waits.append(1)
        torch.cuda.set_sync_debug_mode("default")
        return to_list(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "tolist", counted)
        torch.cuda.set_sync_debug_mode("error")
        try:
            results = sample(on_cuda, rows)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert waits == [1]
    assert [r.token_id for r in results] == [r.token_id for r in on_cpu]
