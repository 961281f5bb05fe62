"""From the command line's options to an engine service that can be started.

Owns how options become settings, how large the pool is, and how what cannot be loaded is said. Never knows HTTP or the
page.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli import CannotStart, Options, in_option_words
from engine.kv.pool_size import ModelMemory, blocks_that_fit, check_fits, free_cpu_bytes
from engine.model.errors import ModelError
from engine.scheduling.sampling_params import InvalidRequest
from engine.serving.remote_texts import RemoteTexts
from engine.settings import EngineSettings
from engine.telemetry.trace import TraceError, TraceRecorder

if TYPE_CHECKING:
    from engine.loading import OpenedModel
    from engine.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

REMOTE_KEY_VARIABLE = "OPENAI_API_KEY"
"""The key of a server that the page is attached to, where it needs one."""


@dataclass(frozen=True)
class Launched:
    """A service that has not been started yet, and what was loaded for it.

    `service` has the doors of `EngineService`; a recorded run has them too, though no tokenizer and nobody who answers.
    `close` ends the engine, then the recording. `sampling` is what the model's makers recommend.
    """

    service: Any
    tokenizer: Tokenizer | RemoteTexts
    model_name: str
    summary: str
    close: Callable[[], None]
    sampling: Mapping[str, float] = field(default_factory=dict)


def launch(options: Options) -> Launched:
    """Load what `options` ask for. Raises CannotStart, before weights are read wherever that can be known."""
    if options.replay is not None:
        return _launch_replay(options.replay)
    if options.attach is not None:
        return _launch_attached(options.attach, os.environ.get(REMOTE_KEY_VARIABLE) or None)
    from engine.text.tokenizer_files import TextError

    try:
        return _launch_engine(options)
    except InvalidRequest as error:
        raise CannotStart(in_option_words(error)) from None
    except (ModelError, TextError, MemoryError) as error:
        raise CannotStart(str(error)) from None


def _launch_replay(path: Path) -> Launched:
    from engine.serving.replay_service import build_replay_service

    try:
        service = build_replay_service(path)
    except (TraceError, OSError) as error:
        raise CannotStart(f"--replay {path}: {error}") from None
    return Launched(service, RemoteTexts(), service.model_name, f"the recorded run {path.name}, no model", service.stop)


def _launch_attached(url: str, api_key: str | None) -> Launched:
    from engine.serving.attached_service import AttachedService
    from engine.serving.remote_client import RemoteFailure, first_model

    base = url.rstrip("/").removesuffix("/v1")
    try:
        model = first_model(base, api_key)
    except RemoteFailure as error:
        raise CannotStart(f"--attach {url}: {error}") from None
    service = AttachedService(base, model.name, api_key, model.max_model_len)
    return Launched(service, RemoteTexts(), model.name, f"{model.name} on {base}", service.stop)


def _launch_engine(options: Options) -> Launched:
    # Here, because a recorded run needs neither torch nor the seconds that importing it takes.
    from engine.loading import load_model, open_model
    from engine.model.sampling_defaults import sampling_defaults
    from engine.serving.service import EngineService

    opened = open_model(options.model, options.device, options.dtype)
    settings = options.engine_settings(opened.device, opened.config.max_position_embeddings)
    settings = _with_pool(settings, opened, options.sizes_pool_from_memory)
    loaded = load_model(opened, options.quantization, settings.num_blocks, settings.block_size)
    loaded.runner.warm_up(settings.max_num_seqs)
    name = options.served_model_name or loaded.source.name
    service = EngineService(
        loaded.runner,
        loaded.tokenizer,
        settings,
        eos_token_ids=loaded.eos_token_ids,
        vocab_size=loaded.vocab_size,
        model_name=name,
        info=loaded.info,
        check_invariants=options.check_invariants,
    )
    close = service.stop if options.record is None else _recording(service, options.record)
    summary = f"{name}, {loaded.info['dtype']} on {loaded.info['device']}"
    return Launched(service, loaded.tokenizer, name, summary, close, sampling_defaults(loaded.source.path))


def _recording(service: Any, path: Path) -> Callable[[], None]:
    """Record the run to `path`; returns how to end both in order, so that the file is whole."""
    try:
        recorder = TraceRecorder(service, path)
    except OSError as error:
        raise CannotStart(f"--record {path}: {error.strerror or error}") from None
    service.add_listener(recorder)

    def close() -> None:
        service.stop()
        recorder.close()

    return close


def _with_pool(settings: EngineSettings, opened: OpenedModel, sizes_from_memory: bool) -> EngineSettings:
    """The settings, with as many blocks as memory allows where that was asked for. Raises MemoryError."""
    import torch

    device, block_size = opened.device, settings.block_size
    memory = _memory_of(opened, settings)
    free_bytes = torch.cuda.mem_get_info()[0] if device == "cuda" else free_cpu_bytes()
    if not sizes_from_memory:
        check_fits(memory, settings.num_blocks, block_size, device, free_bytes)
        return settings
    # Twice what all running requests could fill at most: the rest would only ever be cache.
    most = 2 * settings.max_num_seqs * -(-settings.max_model_len // block_size)
    num_blocks = blocks_that_fit(memory, block_size, device, free_bytes, most)
    log.info("KV pool: %d blocks of %d tokens, from %.1f GiB free memory", num_blocks, block_size, free_bytes / 2**30)
    return settings.changed({"num_blocks": num_blocks})


def _memory_of(opened: OpenedModel, settings: EngineSettings) -> ModelMemory:
    from engine.model import checkpoint

    config, size = opened.config, opened.dtype.itemsize
    _, weights = checkpoint.open_weights(opened.source.path)
    num_parameters = sum(math.prod(shape) for shape in weights.shapes().values())
    widest = 2 * config.intermediate_size + 2 * config.hidden_size
    return ModelMemory(
        weight_bytes=num_parameters * size,
        work_bytes=settings.max_num_batched_tokens * widest * size + 3 * settings.max_num_seqs * config.vocab_size * 4,
        kv_bytes_per_token=2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * size,
    )
