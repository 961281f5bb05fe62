"""From what the command line says to a runner that can serve: model, tokenizer, sizes.

Owns the order of loading and the choice of device and dtype. Never knows requests, threads or HTTP.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import torch

from engine.model import checkpoint
from engine.model.errors import ModelError
from engine.model.source import ModelSource, resolve
from engine.settings import EngineSettings
from engine.text.tokenizer import Tokenizer
from engine.torch_runner import TorchRunner

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """All that an `EngineService` needs. `info` is what the page and `/engine/state` say of it."""

    runner: TorchRunner
    tokenizer: Tokenizer
    source: ModelSource
    eos_token_ids: frozenset[int]
    vocab_size: int
    max_model_len: int
    info: dict[str, Any]


def choose_device(device: str) -> str:
    """ "cuda" or "cpu" for "auto"; the device itself otherwise. Raises ModelError for a card that is not there."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("--device cuda: torch sees no CUDA device here; use --device cpu, or install a CUDA build")
    return device


def choose_dtype(dtype: str, device: str) -> torch.dtype:
    """What is fast and safe on the device for "auto"; the dtype itself otherwise."""
    if dtype != "auto":
        return DTYPES[dtype]
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.float32


def load_model(model: str, device: str, dtype: str, quantization: str, num_blocks: int, block_size: int) -> LoadedModel:
    """Resolve, read, check and place a model, with a line of the log for each part. Raises ModelError, TextError."""
    started = time.perf_counter()
    device = choose_device(device)
    source = resolve(model, device)
    log.info("Model: %s (%s)", source.name, source.reason)
    torch_dtype = choose_dtype(dtype, device)
    network, config = checkpoint.load(source.path, torch_dtype, device)
    read = time.perf_counter()
    log.info("Weights read in %.1f s (%s on %s)", read - started, str(torch_dtype).removeprefix("torch."), device)
    tokenizer = Tokenizer.load(source.path)
    log.info("Tokenizer read in %.1f s", time.perf_counter() - read)
    vocab_size = min(tokenizer.vocab_size, config.vocab_size)
    runner = TorchRunner(network, num_blocks, block_size, torch_dtype, device, vocab_size)
    info = {
        "device": device,
        "device_name": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "dtype": str(torch_dtype).removeprefix("torch."),
        "quantization": "none",
    }
    eos = frozenset(config.eos_token_ids) | tokenizer.eos_token_ids
    return LoadedModel(runner, tokenizer, source, eos, vocab_size, config.max_position_embeddings, info)


def settings_for(loaded: LoadedModel, settings: EngineSettings, max_model_len: int | None) -> EngineSettings:
    """`settings` with the context length that was asked for, or the model's own. Raises ModelError past that."""
    wanted = max_model_len or loaded.max_model_len
    if wanted > loaded.max_model_len:
        raise ModelError(
            f"--max-model-len {wanted} is more than the model was trained for ({loaded.max_model_len}); lower it"
        )
    return settings.changed({"max_model_len": wanted})
