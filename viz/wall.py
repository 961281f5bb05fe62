"""Many prompts at once: one button, N requests, their answers growing side by side.

Owns which prompts are sent and how N streams become one growing picture. Never knows how cards are drawn.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from viz.chat import (
    POLL_EVERY_S,
    REFUSALS,
    ChatSettings,
    abort_named,
    client_name,
    follow,
    in_words,
    messages_of,
    new_answer,
    prompt_tokens,
)

PROMPTS_FILE = Path(__file__).resolve().parent.parent / "assets" / "prompts.json"
DRAW_EVERY_S = 0.12

_runs = itertools.count(1)


def load_prompts(path: Path = PROMPTS_FILE) -> list[str]:
    """The example prompts, all different."""
    prompts: list[str] = json.loads(path.read_text(encoding="utf-8"))["prompts"]
    return prompts


class Wall:
    """The handlers of the wall of answers."""

    def __init__(self, service: Any, tokenizer: Any, prompts: Sequence[str]) -> None:
        self._service = service
        self._tokenizer = tokenizer
        self._prompts = list(prompts)

    def choose(self, count: int, seed: int | None = None) -> list[str]:
        """`count` different prompts while there are that many; the first ones, or shuffled by a seed."""
        if seed is None:
            chosen = self._prompts[:count]
        else:
            chosen = random.Random(seed).sample(self._prompts, min(count, len(self._prompts)))
        return [chosen[i % len(chosen)] for i in range(count)]

    async def send(self, prompts: Sequence[str], settings: ChatSettings) -> AsyncIterator[Any]:
        """Send all prompts in one moment; yields `{"run", "cards", "client"}` as the answers grow, or a skip.

        Closing this generator aborts what is still running.
        """
        cards = [new_answer() | {"prompt": prompt} for prompt in prompts]
        client = client_name("wall")
        value = {"run": next(_runs), "cards": cards, "client": client}
        changed = asyncio.Event()
        readers = []
        for card in cards:
            stream = self._submit(card, settings, client)
            if stream is not None:
                readers.append(asyncio.create_task(_read(self._service, stream, card, changed)))
        yield value
        try:
            while not all(reader.done() for reader in readers):
                try:
                    await asyncio.wait_for(changed.wait(), POLL_EVERY_S)
                except TimeoutError:
                    yield gr.skip()
                    continue
                await asyncio.sleep(DRAW_EVERY_S)
                changed.clear()
                yield value
            for reader in readers:
                await reader
            yield value
        finally:
            for reader in readers:
                reader.cancel()
            if not all(card["phase"] == "done" for card in cards):
                self._service.abort_client(client)

    def _submit(self, card: dict[str, Any], settings: ChatSettings, client: str) -> Any:
        turn = [{"role": "user", "text": card["prompt"]}]
        try:
            prompt = prompt_tokens(self._tokenizer, messages_of(turn, settings.system))
            return self._service.submit(prompt, settings.params(), client=client)[0]
        except REFUSALS as error:
            card.update(phase="done", note=None, error=in_words(error))
            return None

    def stop(self, value: Any) -> None:
        """Abort every request of the wall `value` that is still running."""
        abort_named(self._service, value)


async def _read(service: Any, stream: Any, card: dict[str, Any], changed: asyncio.Event) -> None:
    async for news in follow(service, stream, card):
        if news:
            changed.set()
    changed.set()
