"""The forms in which a weight matrix can be kept for fast products, with the operators that ship in torch.

Owns packing, the operators, and the question whether this machine has them. Never knows what a matrix is for.
Every form computes `x (M, K) -> x @ weight.T + bias (M, N)` in the dtype of x, and each row of the result is the same
whatever the other rows are: on CPUs that was measured of all forms but `PlainLinear`, and `OneDNNLinear` asks again.
"""

from __future__ import annotations

import functools
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

INT4_GROUP = 32
"""Weights of a row that share a scale: the block of GGUF's Q4_0 and Q4_1."""


class Linear(Protocol):
    """A matrix in some form."""

    @property
    def nbytes(self) -> int:
        """Memory that the weights take."""

    def __call__(self, x: Tensor) -> Tensor:
        """x (M, K) -> (M, N)."""


class PlainLinear:
    """The matrix as it is: right on every device and in every dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self.nbytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        return F.linear(x, self.weight, self.bias)


class OneDNNLinear:
    """bfloat16 or float32, packed once into oneDNN's own layout; `F.linear` would pack at every call, which costs as
    much again in bfloat16, and adds in an order that depends on the number of rows in float32.

    A single row may be multiplied by a matrix-vector routine that adds in another order. Packing asks whether it is
    here, and then computes single rows as two, so that an answer does not depend on its company.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.nbytes = weight.nbytes
        self.bias = bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 8)
        self._apply = torch.ops.mkldnn._linear_pointwise.default
        key = (weight.dtype, weight.shape[0], weight.shape[1], torch.get_num_threads())
        if key not in _SINGLE_ROW_DIFFERS:
            x = torch.randn(2, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight.dtype)
            _SINGLE_ROW_DIFFERS[key] = not torch.equal(self.product(x[:1]), self.product(x)[:1])
        self._pads_single_row = _SINGLE_ROW_DIFFERS[key]

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear; x has the weight's dtype."""
        if self._pads_single_row and x.shape[0] == 1:
            return self.product(x.expand(2, -1).contiguous())[:1]
        return self.product(x)

    def product(self, x: Tensor, then: str = "none") -> Tensor:
        """The bare operator; `then` is applied to the result, for example "swish"."""
        result: Tensor = self._apply(x, self.packed, self.bias, then, [], "")
        return result


_SINGLE_ROW_DIFFERS: dict[tuple[torch.dtype, int, int, int], bool] = {}


class Float16Linear:
    """float16 weights for float32 rows, summed in float32 by FBGEMM (Khudia et al., 2021): half the memory to read.

    Its kernels take a few rows at a time, and what is left over goes to smaller ones, of which those for one or two
    rows may add in another order. Rows of zeros are appended where that would show; see `steady_num_rows`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight (N, K) in float32, within `fits_float16`."""
        self.nbytes = 2 * weight.numel()
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
        self._apply = torch.ops.quantized.linear_dynamic_fp16.default

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear; x is float32."""
        num_rows = x.shape[0]
        num_missing = steady_num_rows(num_rows) - num_rows
        if num_missing == 0:
            return self.product(x)
        return self.product(torch.constant_pad_nd(x, (0, 0, 0, num_missing)))[:num_rows]

    def product(self, x: Tensor) -> Tensor:
        """The bare operator."""
        result: Tensor = self._apply(x, self._packed)
        return result


class Int4Linear:
    """4-bit weights in groups of 32 with a bfloat16 scale and zero each: weight = (value - 8) * scale + zero.

    Holds the grid of GGUF's Q4_0 and Q4_1 as it is, but for the rounding of scale and zero to bfloat16. Inputs are
    rounded to bfloat16, since the operator is slow with others; sums are taken in float32.
    """

    def __init__(self, values: Tensor, scales: Tensor, minima: Tensor, bias: Tensor | None = None) -> None:
        """weight = values * scales + minima: values (N, K) from 0 to 15, scales and minima (N, K / 32). Raises
        ValueError for sizes that `int4_fits` denies."""
        if not int4_fits(*values.shape):
            raise ValueError(f"4-bit products need rows in sixteens and columns in thirty-twos, got {values.shape}")
        scales, minima = scales.float(), minima.float()
        zeros = minima + 8 * scales
        self._packed = torch._convert_weight_to_int4pack_for_cpu(values.to(torch.int32), 1)  # (N, K / 2) uint8
        both = torch.stack((scales.T, zeros.T), dim=-1)  # (K / 32, N, 2)
        self._scales_and_zeros = both.to(torch.bfloat16).contiguous()
        self.bias = bias
        self.nbytes = self._packed.nbytes + self._scales_and_zeros.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """See Linear."""
        if x.dtype != torch.bfloat16:
            return self.product(x.to(torch.bfloat16)).to(x.dtype)
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """x (M, K) in bfloat16 -> (M, N) in bfloat16."""
        out = torch._weight_int4pack_mm_for_cpu(x, self._packed, INT4_GROUP, self._scales_and_zeros)
        return out if self.bias is None else out.add_(self.bias)


class GatedLinear:
    """SwiGLU's first half, silu(x @ gate.T) * (x @ up.T), from one product with both matrices one below the other."""

    def __init__(self, gate_up: Linear) -> None:
        self._gate_up = gate_up
        self.nbytes = gate_up.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """x (M, K) -> (M, width), half as wide as the product."""
        gate, up = self._gate_up(x).chunk(2, dim=-1)  # (M, width) each
        return F.silu(gate).mul_(up)


class OneDNNGatedLinear:
    """The same as two products, with silu and the multiplication done on their results while these are in registers.

    Faster for the many rows of a prompt, slower for a few, which pay for the second call.
    """

    def __init__(self, gate: OneDNNLinear, up: OneDNNLinear) -> None:
        self._gate, self._up = gate, up
        self.nbytes = gate.nbytes + up.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """x (M, K) -> (M, width)."""
        rows = x if x.shape[0] > 1 else x.expand(2, -1).contiguous()  # as in OneDNNLinear
        gate = self._gate.product(rows, "swish")
        result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, gate, self._up.packed, self._up.bias, "mul")
        return result[: x.shape[0]]


def int4_fits(num_rows: int, num_columns: int) -> bool:
    """Whether a matrix has a size that torch's 4-bit operator takes: (N, K)."""
    return num_rows % 16 == 0 and num_columns % INT4_GROUP == 0


FBGEMM_PERIOD = 120
"""FBGEMM cuts the rows of a product into pieces of this many, each computed alike."""


def fits_float16(weight: Tensor) -> bool:
    """Whether rounding to float16 costs no more than its 11 bits: no weight is too large for it, and few too small."""
    lost = weight - weight.to(torch.float16)  # infinite where a weight is too large
    return bool(lost.norm() <= 2.0**-11 * weight.norm())


def steady_num_rows(num_rows: int) -> int:
    """The least number of rows, at least as many, that `Float16Linear` multiplies all in the same order of addition."""
    pieces, rest = divmod(num_rows, FBGEMM_PERIOD)
    return pieces * FBGEMM_PERIOD + _steady_rests()[rest]


@functools.cache
def _steady_rests() -> tuple[int, ...]:
    """For each number of rows up to FBGEMM_PERIOD, the next that is steady: found by trying them on a small product.
    Raises RuntimeError where numbers beyond the first piece behave otherwise than those within it."""
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(32, 64, generator=generator), torch.randn(2 * FBGEMM_PERIOD, 64, generator=generator)
    linear = Float16Linear(weight)
    whole = linear.product(x)
    steady = [torch.equal(linear.product(x[:n]), whole[:n]) for n in range(2 * FBGEMM_PERIOD + 1)]
    if steady[FBGEMM_PERIOD:] != [True, *steady[1 : FBGEMM_PERIOD + 1]] or not steady[FBGEMM_PERIOD]:
        raise RuntimeError("float16 products here depend on the number of rows in a way that is not understood")
    rests, next_steady = [], FBGEMM_PERIOD
    for n in range(FBGEMM_PERIOD, -1, -1):
        next_steady = n if steady[n] else next_steady
        rests.append(next_steady)
    return tuple(reversed(rests))


@functools.cache
def has_float16_linear() -> bool:
    """Whether torch can multiply float16 weights with float32 rows here, each row alike in any company."""

    def compute() -> Tensor:
        _steady_rests()
        return Float16Linear(torch.eye(16))(torch.eye(16))

    return _is_right(compute, torch.eye(16))


def has_fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; others emulate it, slower than float32."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in checks)


@functools.cache
def has_onednn_linear(dtype: torch.dtype) -> bool:
    """Whether torch can pack weights of this dtype for oneDNN here: tried once, on a small product."""
    if not torch.backends.mkldnn.is_available() or dtype not in (torch.bfloat16, torch.float32):
        return False
    weight = torch.eye(16, dtype=dtype)
    return _is_right(lambda: OneDNNLinear(weight)(weight), weight)


@functools.cache
def has_int4_linear() -> bool:
    """Whether torch has the 4-bit operator here, and it computes what it should: tried once, on a small product."""
    identity = torch.eye(64)
    values = (8 + identity).to(torch.uint8)
    scales = torch.ones(64, 2)
    return _is_right(lambda: Int4Linear(values, scales, -8 * scales)(identity.bfloat16()), identity.bfloat16())


def has_measured_int4_linear() -> bool:
    """Whether this CPU is of a kind on which 4-bit products were measured faster than all bits: x86 with AVX2."""
    checks = ("_is_avx2_supported", "_is_avx512_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in checks)


def _is_right(compute: object, expected: Tensor) -> bool:
    try:
        return torch.equal(compute(), expected)  # type: ignore[operator]
    except (AttributeError, RuntimeError, NotImplementedError):  # an operator that this build of torch lacks
        return False
