"""What a GGUF file says about itself: metadata, and where each tensor lies.

Owns the byte layout of the header (GGUF versions 2 and 3, little-endian) and the distrust of it: every length is held
against the file's real size before anything is read or reserved. The `gguf` package's own reader believes the lengths
and takes two seconds for a vocabulary of 49,152 words; its tables of types and block sizes are used here. Never knows
what a key or a tensor means.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from engine.model.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ENTRIES = 2**17
"""More metadata keys or tensors than this are a damaged file, not a model."""

_SCALARS: dict[int, str] = {
    GGUFValueType.UINT8: "u1",
    GGUFValueType.INT8: "i1",
    GGUFValueType.UINT16: "u2",
    GGUFValueType.INT16: "i2",
    GGUFValueType.UINT32: "u4",
    GGUFValueType.INT32: "i4",
    GGUFValueType.FLOAT32: "f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "u8",
    GGUFValueType.INT64: "i8",
    GGUFValueType.FLOAT64: "f8",
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: shape in torch's order (rows first), type name such as "Q4_1", and its bytes in the file."""

    shape: tuple[int, ...]
    type_name: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Metadata by key (numbers, strings, lists of either) and tensors by their GGUF name."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]


def read_header(path: Path) -> GGUFHeader:
    """Read a file's header. Raises ModelError for anything that is not a whole, consistent GGUF file."""
    try:
        with path.open("rb") as file:
            return _HeaderReader(file, path.name, path.stat().st_size).read()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None


class _HeaderReader:
    """Reads forward through one open file, never past its end."""

    def __init__(self, file: BinaryIO, name: str, file_bytes: int) -> None:
        self.file, self.name, self.file_bytes = file, name, file_bytes
        self.position = 0

    def read(self) -> GGUFHeader:
        if self.take(4) != MAGIC:
            raise self.damaged("it does not begin with the letters GGUF")
        version = self.integer("<I")
        if version not in VERSIONS:
            raise ModelError(
                f"{self.name} has GGUF version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} are read"
            )
        num_tensors, num_keys = self.integer("<Q"), self.integer("<Q")
        if num_tensors > MAX_ENTRIES or num_keys > MAX_ENTRIES:
            raise self.damaged(f"it claims {num_tensors} tensors and {num_keys} keys (limit: {MAX_ENTRIES})")
        metadata = self.unique_entries(num_keys, lambda: self.value(self.integer("<I")))
        located = self.unique_entries(num_tensors, self.tensor_info)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self.damaged(f"its alignment is {alignment!r}, which is no power of two")
        data_start = -(-self.position // alignment) * alignment
        return GGUFHeader(metadata, {name: self.placed(name, info, data_start) for name, info in located.items()})

    def unique_entries(self, count: int, read_value: Callable[[], Any]) -> dict[str, Any]:
        """`count` pairs of a name and what `read_value` finds behind it."""
        entries: dict[str, Any] = {}
        for _ in range(count):
            name = self.string()
            if name in entries:
                raise self.damaged(f"it holds {name!r} twice")
            entries[name] = read_value()
        return entries

    def tensor_info(self) -> tuple[tuple[int, ...], int, int]:
        """Shape (rows first), type number, offset within the data."""
        num_dims = self.integer("<I")
        if num_dims > 4:
            raise self.damaged(f"a tensor has {num_dims} dimensions (limit: 4)")
        shape = tuple(reversed([self.integer("<Q") for _ in range(num_dims)]))
        return shape, self.integer("<I"), self.integer("<Q")

    def placed(self, name: str, info: tuple[tuple[int, ...], int, int], data_start: int) -> TensorEntry:
        """The tensor's place in the file, once its size is known to fit there."""
        shape, type_number, offset = info
        try:
            kind = GGMLQuantizationType(type_number)
        except ValueError:
            raise ModelError(f"{self.name}: tensor {name!r} has the unknown type {type_number}") from None
        block_size, block_bytes = GGML_QUANT_SIZES[kind]
        if not shape or 0 in shape or shape[-1] % block_size:
            raise self.damaged(f"tensor {name!r} has the shape {shape}, rows of blocks of {block_size}")
        num_bytes = math.prod(shape) // block_size * block_bytes
        start = data_start + offset
        if start + num_bytes > self.file_bytes:
            raise self.damaged(f"tensor {name!r} ends at byte {start + num_bytes}")
        return TensorEntry(shape, kind.name, start, num_bytes)

    def value(self, kind: int) -> Any:
        """A metadata value: a number, a boolean, a string, or a list of one of these."""
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind in _SCALARS:
            return self.numbers(kind, 1)[0]
        if kind != GGUFValueType.ARRAY:
            raise self.damaged(f"a key has the unknown value type {kind}")
        item_kind, count = self.integer("<I"), self.integer("<Q")
        if item_kind in _SCALARS:
            return self.numbers(item_kind, count)
        if item_kind != GGUFValueType.STRING:
            raise self.damaged(f"a list has items of the unknown type {item_kind}")
        if count * 8 > self.file_bytes - self.position:  # each string takes at least its length's eight bytes
            raise self.damaged(f"it claims a list of {count} strings")
        return [self.string() for _ in range(count)]

    def numbers(self, kind: int, count: int) -> list[Any]:
        number = np.dtype("<" + _SCALARS[kind])
        return np.frombuffer(self.take(count * number.itemsize), dtype=number).tolist()

    def string(self) -> str:
        return self.take(self.integer("<Q")).decode("utf-8", errors="replace")

    def integer(self, layout: str) -> int:
        number: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return number

    def take(self, count: int) -> bytes:
        if count > self.file_bytes - self.position:
            raise self.damaged(f"it wants {count} bytes at byte {self.position}")
        self.position += count
        return self.file.read(count)

    def damaged(self, how: str) -> ModelError:
        return ModelError(f"{self.name} is damaged or incomplete ({self.file_bytes} bytes): {how}; download it again")
