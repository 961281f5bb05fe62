"""The whole page over a real service whose runner speaks scripted words at a pace, for browser tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from engine.scheduling.plan import StepOutput, StepPlan
from engine.scheduling.request import Request
from engine.serving.service import EngineService
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner
from engine.text.tokenizer import Tokenizer
from tests.http_server import serving
from tests.tiny_models import save_tokenizer, token_ids
from viz import page
from viz.options import PageOptions

END = 1


class Speaker(SimulatedRunner):
    """Answers everybody with `text`, one step in `step_s`; while its gate is closed no step ends."""

    def __init__(self, text: str = "", step_s: float = 0.005) -> None:
        super().__init__(SimulatedClock(), next_token=self._say)
        self.text = text
        self.step_s = step_s
        self.gate = threading.Event()
        self.gate.set()

    def _say(self, request: Request) -> int:
        ids = [*token_ids(self.text or f"This is answer {request.request_id}."), END]
        at = len(request.output_token_ids)
        return ids[at % (len(ids) - 1)] if request.params.ignore_eos else ids[min(at, len(ids) - 1)]

    def run(self, plan: StepPlan) -> StepOutput:
        self.gate.wait(60)
        time.sleep(self.step_s)
        return super().run(plan)


@dataclass
class PageServer:
    """A page that is being served."""

    url: str
    service: EngineService
    speaker: Speaker


@contextmanager
def serving_page(folder: Path, options: PageOptions | None = None, **settings: object) -> Iterator[PageServer]:
    """Serve the page while the block runs; `folder` takes the tokenizer."""
    save_tokenizer(folder)
    tokenizer = Tokenizer.load(folder)
    speaker = Speaker()
    sizes = {"num_blocks": 128, "max_num_seqs": 4, "max_model_len": 1024} | settings
    service = EngineService(
        speaker,
        tokenizer,
        EngineSettings(**sizes),  # type: ignore[arg-type]
        eos_token_ids=frozenset({END}),
        vocab_size=tokenizer.vocab_size,
        model_name="scripted",
        info={"device": "none", "dtype": "none"},
        check_invariants=True,
    )
    app = page.mount(FastAPI(), page.build(service, tokenizer, options))
    service.start()
    try:
        with serving(app) as url:
            yield PageServer(url, service, speaker)
    finally:
        speaker.gate.set()
        service.stop()
