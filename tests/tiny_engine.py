"""A whole service on one of the tiny models, in float32, for tests that go through it from the outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from engine.model import checkpoint
from engine.serving.http_app import HttpOptions, build_http_app
from engine.serving.service import EngineService
from engine.settings import EngineSettings
from engine.text.tokenizer import Tokenizer
from engine.torch_runner import TorchRunner
from tests.http_server import serving, wait_until


def tiny_service(folder: Path, runner: Any = None, **settings: Any) -> EngineService:
    """A service over the model in `folder`, not started. `runner` wraps the real one, to make it fail or wait."""
    defaults = {"num_blocks": 64, "block_size": 16, "max_model_len": 256}
    chosen = EngineSettings(**(defaults | settings))
    model, config = checkpoint.load(folder, torch.float32)
    tokenizer = Tokenizer.load(folder)
    real = TorchRunner(model, chosen.num_blocks, chosen.block_size, torch.float32, "cpu", tokenizer.vocab_size)
    return EngineService(
        runner(real) if runner else real,
        tokenizer,
        chosen,
        eos_token_ids=frozenset(config.eos_token_ids),
        vocab_size=tokenizer.vocab_size,
        model_name="tiny",
        check_invariants=True,
    )


@contextmanager
def serving_tiny(folder: Path, runner: Any = None, **settings: Any) -> Iterator[tuple[str, EngineService]]:
    """(base URL, service) of a running HTTP server over `folder`'s model; afterwards every block is free again."""
    service = tiny_service(folder, runner, **settings)
    assert service.tokenizer is not None
    app = build_http_app(service, service.tokenizer, HttpOptions("tiny"))
    service.start()
    try:
        with serving(app) as url:
            yield url, service
            if service.health() is None:
                wait_until(lambda: service.state()["num_active_blocks"] == 0)
    finally:
        service.stop()


class PacedRunner:
    """A runner that waits before each step until `may_run` is set, so that a test decides when things happen."""

    def __init__(self, real: Any) -> None:
        import threading

        self.real = real
        self.may_run = threading.Event()
        self.may_run.set()
        self.raises: BaseException | None = None
        self.num_steps = 0

    def reset_pool(self, num_blocks: int, block_size: int) -> None:
        self.real.reset_pool(num_blocks, block_size)

    def run(self, plan: Any) -> Any:
        self.may_run.wait(30)
        self.num_steps += 1
        if self.raises is not None:
            error, self.raises = self.raises, None
            raise error
        return self.real.run(plan)
