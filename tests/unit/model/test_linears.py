"""Every form of a matrix multiplies right, and each row alike whatever the other rows are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.model import linears
from engine.model.linears import (
    FBGEMM_PERIOD,
    Float16Linear,
    Int4Linear,
    Linear,
    OneDNNLinear,
    fits_float16,
    has_float16_linear,
    has_int4_linear,
    has_onednn_linear,
    steady_num_rows,
)

needs_float16 = pytest.mark.skipif(not has_float16_linear(), reason="this torch has no float16 product for this CPU")
needs_int4 = pytest.mark.skipif(not has_int4_linear(), reason="this torch has no 4-bit product for this CPU")
needs_onednn = pytest.mark.skipif(not has_onednn_linear(torch.float32), reason="this torch packs no weights here")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def int4(weight: Tensor, bias: Tensor | None) -> Linear:
    """Weights that are steps of an eighth from -1 on, whatever `weight` was."""
    values = torch.randint(0, 16, weight.shape, generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    scales = torch.full((weight.shape[0], weight.shape[1] // 32), 0.125)
    weight.copy_(values * 0.125 - 1)
    return Int4Linear(values, scales, torch.full_like(scales, -1.0), bias)


FORMS = [
    pytest.param(Float16Linear, 1e-3, id="float16", marks=needs_float16),
    pytest.param(OneDNNLinear, 1e-5, id="oneDNN float32", marks=needs_onednn),
    pytest.param(int4, 1e-2, id="int4", marks=needs_int4),
]
Make = Callable[[Tensor, Tensor | None], Linear]


@pytest.mark.parametrize("num_columns", [64, 576])
@pytest.mark.parametrize(("make", "tolerance"), FORMS)
def test_the_product_is_right(make: Make, tolerance: float, num_columns: int) -> None:
    weight, bias = drawn(48, num_columns), drawn(48, seed=2)
    for one in (None, bias):
        linear = make(weight, one)
        for num_rows in (1, 2, 7, 33):
            x = drawn(num_rows, num_columns, seed=3)
            expected = torch.nn.functional.linear(x.double(), weight.double(), None if one is None else one.double())
            assert (linear(x) - expected).norm() < tolerance * expected.norm()


@pytest.mark.parametrize(("make", "tolerance"), FORMS)
def test_a_row_is_the_same_in_any_company(make: Make, tolerance: float) -> None:
    linear, x = make(drawn(96, 576), None), drawn(2 * FBGEMM_PERIOD + 10, 576, seed=3)
    whole = linear(x)
    for num_rows in (*range(1, 40), 64, 119, 120, 121, 122, 127, 134, 241):
        assert torch.equal(linear(x[:num_rows]), whole[:num_rows]), f"{num_rows} rows"
        assert torch.equal(linear(x[-num_rows:]), whole[-num_rows:]), f"the last {num_rows} rows"


@needs_float16
def test_steady_numbers_are_enough_few_more_and_steady() -> None:
    for num_rows in range(3 * FBGEMM_PERIOD):
        steady = steady_num_rows(num_rows)
        assert num_rows <= steady <= num_rows + 8
        assert steady_num_rows(steady) == steady


@needs_float16
def test_a_product_that_is_steady_nowhere_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    product = Float16Linear.product
    monkeypatch.setattr(Float16Linear, "product", lambda self, x: product(self, x) + 1e-6 * x.shape[0])
    for cached in (linears._steady_rests, has_float16_linear):
        cached.cache_clear()
    try:
        assert not has_float16_linear()
    finally:
        monkeypatch.undo()
        for cached in (linears._steady_rests, has_float16_linear):
            cached.cache_clear()


def test_weights_beyond_float16_are_told() -> None:
    assert fits_float16(torch.tensor([65504.0, -65504.0, 1e-9]))
    assert fits_float16(torch.zeros(3))
    assert not fits_float16(torch.tensor([1.0, -65600.0]))
    assert not fits_float16(1e-7 * drawn(64))
