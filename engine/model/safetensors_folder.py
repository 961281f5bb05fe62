"""The weights of a Hugging Face folder: one safetensors file, or the shards that an index names.

Owns which files count and the refusal of damaged ones. Never knows what a tensor is for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.model.config import read_json_object
from engine.model.errors import ModelError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")
MAX_HEADER_BYTES = 8 * 2**20
"""Published shards' headers stay under 1 MB; a larger one only serves to fill memory."""


class SafetensorsFolder:
    """Named tensors of a folder. Opens every file once; tensors are read one at a time."""

    def __init__(self, folder: Path) -> None:
        """Open what the folder's index names, or `model.safetensors`; other files beside them are ignored.

        Raises ModelError for a shard that is absent, outside the folder, or damaged.
        """
        self._files: dict[str, Any] = {}  # tensor name -> the open file that holds it
        self._shapes: dict[str, tuple[int, ...]] = {}
        index_file = folder / INDEX_NAME
        if index_file.is_file():
            self._open_shards(folder, read_json_object(index_file))
        elif (folder / SINGLE_NAME).is_file():
            self._open_file(folder / SINGLE_NAME, None)
        else:
            raise ModelError(
                f"no weights in {folder}: expected {SINGLE_NAME} or {INDEX_NAME} (pickled .bin files are not read)"
            )

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See Weights."""
        return self._shapes

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """See Weights. Always a copy: a view would keep the file mapped, and crash if somebody truncates it."""
        try:
            tensor: Tensor = self._files[name].get_tensor(_name_in_file(name, self._files[name]))
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ModelError(f"{name} cannot be read: {error}") from None
        return tensor.to(dtype, copy=True)

    def _open_shards(self, folder: Path, index: Mapping[str, Any]) -> None:
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{INDEX_NAME} has no weight_map")
        names_by_file: dict[str, set[str]] = {}
        for name, file_name in weight_map.items():
            if not isinstance(file_name, str) or not re.fullmatch(r"[^/\\:\0]*\.safetensors", file_name):
                raise ModelError(f"{INDEX_NAME} names {file_name!r}, which is no .safetensors file of this folder")
            names_by_file.setdefault(file_name, set()).add(name)
        absent = sorted(file_name for file_name in names_by_file if not (folder / file_name).is_file())
        if absent:
            raise ModelError(
                f"{len(absent)} of {len(names_by_file)} shards named by {INDEX_NAME} are missing: "
                f"{', '.join(absent[:5])}; download the model again"
            )
        for file_name, names in sorted(names_by_file.items()):
            self._open_file(folder / file_name, names)

    def _open_file(self, path: Path, wanted: set[str] | None) -> None:
        """Take in the tensors of one file: all, or those the index assigns to it."""
        _check_header_size(path)
        try:
            file = safe_open(path, framework="pt", device="cpu")
            names = set(file.keys())
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(f"{path.name} is damaged or incomplete: {error}; download it again") from None
        if wanted is not None and not wanted <= names:
            lost = sorted(wanted - names)
            raise ModelError(f"{path.name} lacks tensors the index promises ({len(lost)}): {', '.join(lost[:5])}")
        for name in sorted(names if wanted is None else wanted):
            part = file.get_slice(name)
            if part.get_dtype() not in FLOAT_DTYPES:
                raise ModelError(
                    f"{path.name}: {name} is {part.get_dtype()}; only {', '.join(FLOAT_DTYPES)} are read "
                    "(quantized checkpoints: use a .gguf file)"
                )
            self._files[name.removeprefix("model.")] = file
            self._shapes[name.removeprefix("model.")] = tuple(part.get_shape())


def _name_in_file(name: str, file: Any) -> str:
    return name if name in file.keys() else f"model.{name}"  # noqa: SIM118 - safe_open is no mapping


def _check_header_size(path: Path) -> None:
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
    file_bytes = path.stat().st_size
    if header_bytes > min(MAX_HEADER_BYTES, max(file_bytes - 8, 0)):
        raise ModelError(
            f"{path.name} claims a header of {header_bytes} bytes (file: {file_bytes} bytes, limit: "
            f"{MAX_HEADER_BYTES}); it is damaged or incomplete: download it again"
        )
