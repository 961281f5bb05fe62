"""From the name of a model to a runner that can serve: device, dtype, weights, tokenizer, pool.

Owns the order in which things are loaded and the choices of `auto`. Never knows requests, threads, HTTP or the page.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import torch

from engine.model import checkpoint
from engine.model.config import ModelConfig
from engine.model.errors import ModelError
from engine.model.linears import has_fast_bfloat16, has_float16_linear, has_onednn_linear
from engine.model.loader import load_fast
from engine.model.pypi_wheel import cache_folder
from engine.model.source import ModelSource, resolve
from engine.text.tokenizer import Tokenizer
from engine.torch_runner import TorchRunner

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenedModel:
    """A model that was found and whose configuration was read; its weights were not."""

    source: ModelSource
    config: ModelConfig
    device: str
    dtype: torch.dtype
    is_dtype_ours: bool = True
    """Whether `dtype` was left to us; who asks for float32 wants it exact."""

    @property
    def weight_dtype(self) -> torch.dtype:
        """What matrices are kept in. On a CPU without bfloat16 float16, where that was left to us: half to read."""
        is_ours = self.is_dtype_ours and self.device == "cpu" and self.dtype == torch.float32
        return torch.float16 if is_ours and has_float16_linear() else self.dtype


@dataclass(frozen=True)
class LoadedModel:
    """All that an engine needs. `info` is what the page and `/engine/state` say of it.

    `vocab_size` bounds the token ids that may be sent and sampled.
    """

    runner: TorchRunner
    tokenizer: Tokenizer
    source: ModelSource
    eos_token_ids: frozenset[int]
    vocab_size: int
    info: dict[str, Any]


def open_model(model: str, device: str = "auto", dtype: str = "auto") -> OpenedModel:
    """Find a model (downloading it where it has to be) and read its configuration. Raises ModelError."""
    chosen = choose_device(device)
    source = resolve(model, chosen)
    log.info("Model: %s", source.reason)
    config, _ = checkpoint.open_weights(source.path)
    return OpenedModel(source, config, chosen, choose_dtype(dtype, chosen), dtype == "auto")


def load_model(opened: OpenedModel, quantization: str, num_blocks: int, block_size: int) -> LoadedModel:
    """Read weights and tokenizer and make the pool. Raises ModelError, TextError, MemoryError."""
    source, config = opened.source, opened.config
    if opened.dtype == torch.float32 and not opened.is_dtype_ours:
        if quantization == "int4":
            raise ModelError(
                "--quantization int4 rounds to bfloat16; it cannot go with --dtype float32, which is exact"
            )
        quantization = "none"
    started = time.perf_counter()
    tokenizer = _tokenizer(source)
    vocab_size = min(tokenizer.vocab_size, config.vocab_size)
    if tokenizer.vocab_size > config.vocab_size:
        words = "The tokenizer has ids up to %d, the model only to %d; prompts with the others are refused"
        log.warning(words, tokenizer.vocab_size - 1, config.vocab_size - 1)
    read = time.perf_counter()
    fast = load_fast(source.path, opened.dtype, opened.device, quantization, opened.weight_dtype)
    log.info("Quantization %s", fast.reason)
    runner = TorchRunner(fast.model, num_blocks, block_size, opened.dtype, opened.device, vocab_size)
    ended = time.perf_counter()
    log.info("Tokenizer loaded in %.1f s, weights and KV pool in %.1f s", read - started, ended - read)
    info = {
        "device": device_name(opened.device),
        "dtype": dtype_words(opened.dtype, opened.weight_dtype),
        "quantization": fast.quantization,
    }
    eos = frozenset(config.eos_token_ids) | tokenizer.eos_token_ids
    return LoadedModel(runner, tokenizer, source, eos, vocab_size, info)


def _tokenizer(source: ModelSource) -> Tokenizer:
    """What is converted out of a GGUF is kept between starts, where a folder can be written to."""
    try:
        return Tokenizer.load(source.path, cache_folder())
    except OSError as error:
        log.warning("The cache folder %s cannot be used (%s)", cache_folder(), error.strerror or error)
        return Tokenizer.load(source.path)


def choose_device(asked: str) -> str:
    """ "cpu" or "cuda". Raises ModelError when CUDA is asked for and not there."""
    has_cuda = torch.cuda.is_available()
    if asked == "cuda" and not has_cuda:
        raise ModelError("--device cuda: torch sees no CUDA card here; use --device cpu or auto")
    return "cuda" if asked == "cuda" or (asked == "auto" and has_cuda) else "cpu"


def choose_dtype(asked: str, device: str) -> torch.dtype:
    """What is fast and safe: bfloat16 where the device computes in it, else float16 on cards and float32 on CPUs."""
    if asked != "auto":
        dtype: torch.dtype = getattr(torch, asked)
        return dtype
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    return torch.bfloat16 if has_fast_bfloat16() and has_onednn_linear(torch.bfloat16) else torch.float32


def dtype_words(dtype: torch.dtype, weight_dtype: torch.dtype) -> str:
    """What is computed in and, if it's another, what the weights are kept in."""
    name, weights = (str(one).removeprefix("torch.") for one in (dtype, weight_dtype))
    return name if name == weights else f"{name}, weights {weights}"


def device_name(device: str) -> str:
    """In words, for people."""
    return torch.cuda.get_device_name() if device == "cuda" else f"CPU ({torch.get_num_threads()} threads)"
