"""From options to a running engine: device, weights, tokenizer, runner, service.

Owns the order in which things are loaded and the choices of `auto`. Never knows HTTP or the page.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from engine.cli import CannotStart, Options, option_name
from engine.model import checkpoint
from engine.model.config import ModelConfig
from engine.model.errors import ModelError
from engine.model.source import ModelSource, resolve
from engine.scheduling.sampling_params import InvalidRequest
from engine.serving.service import EngineService
from engine.settings import EngineSettings
from engine.text.tokenizer import Tokenizer
from engine.text.tokenizer_files import TextError
from engine.torch_runner import TorchRunner

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Launched:
    """A service that has not been started yet, and what was loaded for it."""

    service: EngineService
    tokenizer: Tokenizer
    model_name: str
    summary: str


def launch(options: Options) -> Launched:
    """Load what `options` ask for. Raises CannotStart, before weights are read wherever that can be known."""
    try:
        return _launch(options)
    except InvalidRequest as error:
        name = error.param or ""
        words = str(error).replace(name, option_name(name)) if name else str(error)
        raise CannotStart(words) from None
    except (ModelError, TextError, MemoryError) as error:
        raise CannotStart(str(error)) from None


def _launch(options: Options) -> Launched:
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    source = resolve(options.model, device)
    log.info("Model: %s", source.reason)
    config, _ = checkpoint.open_weights(source.path)
    settings = options.engine_settings(device, config.max_position_embeddings)
    tokenizer = Tokenizer.load(source.path)
    runner = _runner(source, settings, dtype, device, tokenizer)
    name = options.served_model_name or source.name
    info = {"device": device_name(device), "dtype": str(dtype).removeprefix("torch.")}
    service = EngineService(
        runner,
        tokenizer,
        settings,
        eos_token_ids=frozenset(config.eos_token_ids) | tokenizer.eos_token_ids,
        vocab_size=min(tokenizer.vocab_size, config.vocab_size),
        model_name=name,
        info=info,
        check_invariants=options.check_invariants,
    )
    return Launched(service, tokenizer, name, f"{name}, {info['dtype']} on {info['device']}")


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
    return torch.bfloat16 if _has_fast_bfloat16() else torch.float32


def device_name(device: str) -> str:
    """In words, for people."""
    return torch.cuda.get_device_name() if device == "cuda" else f"CPU ({torch.get_num_threads()} threads)"


def _has_fast_bfloat16() -> bool:
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(check is not None and check() for check in checks)


def _runner(
    source: ModelSource, settings: EngineSettings, dtype: torch.dtype, device: str, tokenizer: Tokenizer
) -> Any:
    model, config = checkpoint.load(source.path, dtype, device)
    _check_ids(tokenizer, config)
    return TorchRunner(model, settings.num_blocks, settings.block_size, dtype, device, tokenizer.vocab_size)


def _check_ids(tokenizer: Tokenizer, config: ModelConfig) -> None:
    if tokenizer.vocab_size > config.vocab_size:
        log.warning(
            "The tokenizer has ids up to %d, the model only %d; prompts with the others are refused",
            tokenizer.vocab_size - 1,
            config.vocab_size - 1,
        )
