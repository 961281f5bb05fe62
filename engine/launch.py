"""From the command line's options to an engine service that can be started.

Owns how options become settings and how what cannot be loaded is said. Never knows HTTP or the page.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.cli import CannotStart, Options, in_option_words
from engine.loading import load_model, open_model
from engine.model.errors import ModelError
from engine.scheduling.sampling_params import InvalidRequest
from engine.serving.service import EngineService
from engine.text.tokenizer import Tokenizer
from engine.text.tokenizer_files import TextError


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
        raise CannotStart(in_option_words(error)) from None
    except (ModelError, TextError, MemoryError) as error:
        raise CannotStart(str(error)) from None


def _launch(options: Options) -> Launched:
    opened = open_model(options.model, options.device, options.dtype)
    settings = options.engine_settings(opened.device, opened.config.max_position_embeddings)
    loaded = load_model(opened, options.quantization, settings.num_blocks, settings.block_size)
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
    return Launched(service, loaded.tokenizer, name, f"{name}, {loaded.info['dtype']} on {loaded.info['device']}")
