"""Weights from files into a model: names and shapes checked first, then tensor by tensor into the target dtype.

Owns which tensor of a file is which parameter, and the report of what is missing, unexpected or misshapen. Reads
safetensors folders itself and GGUF files through `gguf_file`; never a pickle. Never knows where the files came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.model.config import ModelConfig
from engine.model.errors import ModelError
from engine.model.llama import Llama
from engine.model.safetensors_folder import SafetensorsFolder

HARMLESS_SUFFIXES = (".rotary_emb.inv_freq", ".attn.masked_bias", ".attn.bias")
"""Buffers that old checkpoints carry and every implementation computes itself."""

MAX_NAMES_SHOWN = 5


class Weights(Protocol):
    """A file, or a folder of files, that holds named tensors."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape under its Hugging Face name without the leading `model.`."""

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor on the CPU in `dtype`, in memory of its own."""


def load(path: Path | str, dtype: torch.dtype, device: torch.device | str = "cpu") -> tuple[Llama, ModelConfig]:
    """Load a Hugging Face folder or a .gguf file, ready for inference: evaluation mode, no gradients.

    Peak memory is the model in `dtype` plus its largest tensor. Raises ModelError, naming every tensor at fault, before
    anything is read when names or shapes don't fit, and for files that are damaged.
    """
    config, weights = open_weights(Path(path))
    model = empty_model(config)
    check_names_and_shapes(model, weights.shapes(), config)
    for name, parameter in list(model.named_parameters()):
        tensor = weights.read(name, dtype)
        if tensor.shape != parameter.shape:
            raise ModelError(f"{name} has shape {tuple(tensor.shape)} when read, expected {tuple(parameter.shape)}")
        assign_parameter(model, name, tensor.to(device))
    return model.eval(), config


def open_weights(path: Path) -> tuple[ModelConfig, Weights]:
    """The configuration and the not yet read weights of a folder or a .gguf file. Raises ModelError."""
    if path.is_dir():
        return ModelConfig.from_folder(path), SafetensorsFolder(path)
    if path.is_file() and path.suffix == ".gguf":
        from engine.model.gguf_file import GGUFFile  # only here: reading a folder should not need the gguf package

        file = GGUFFile(path)
        return file.config, file
    if path.is_file():
        raise ModelError(f"{path.name} is neither a model folder nor a .gguf file")
    raise ModelError(f"no model at {path}: give a Hugging Face folder or a .gguf file")


def empty_model(config: ModelConfig) -> Llama:
    """A model whose parameters have shapes but no memory (torch's meta device)."""
    with torch.device("meta"):
        model = Llama(config)
    return model.requires_grad_(False)


def assign_parameter(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Put `tensor` in the place of the parameter called `name`, without a copy."""
    owner_name, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner_name), leaf, nn.Parameter(tensor, requires_grad=False))


def check_names_and_shapes(model: Llama, found: Mapping[str, tuple[int, ...]], config: ModelConfig) -> None:
    """Compare what a file holds with what the model needs. Raises ModelError that lists every difference."""
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    ignored: Callable[[str], bool] = lambda name: (  # noqa: E731 - one rule, used once, reads best in place
        name.endswith(HARMLESS_SUFFIXES) or (config.tie_word_embeddings and name == "lm_head.weight")
    )
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected and not ignored(name)]
    misshapen = [
        f"{name} is {_shape(found[name])}, needs {_shape(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != shape
    ]
    faults = [
        _listed("missing", missing),
        _listed("unexpected", unexpected),
        _listed("wrong shape", misshapen),
    ]
    if any(faults):
        raise ModelError(
            f"the checkpoint does not fit {config.architecture} as its config describes it; "
            + "; ".join(fault for fault in faults if fault)
        )


def _listed(what: str, names: list[str]) -> str:
    """`missing (7): a, b, c, d, e, ...`, or nothing when the list is empty."""
    if not names:
        return ""
    shown = ", ".join(names[:MAX_NAMES_SHOWN]) + (", ..." if len(names) > MAX_NAMES_SHOWN else "")
    return f"{what} ({len(names)}): {shown}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
