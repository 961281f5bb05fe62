"""What programs may call on the page: `gradio_client`'s way to ask the model.

Owns one named endpoint, `/answer`. Whoever wants more speaks OpenAI's routes. Never knows how the page looks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import gradio as gr

from viz.chat import MAX_MESSAGE_CHARS, REFUSALS, ChatSettings, client_name, follow, in_words, new_answer, prompt_tokens


def build(service: Any, tokenizer: Any) -> None:
    """Add the endpoint to the Blocks that are being built."""

    async def ask(message: str, max_tokens: int = 128, temperature: float = 1.0) -> AsyncIterator[str]:
        """The answer to one message, as it grows."""
        if not message.strip() or len(message) > MAX_MESSAGE_CHARS:
            raise gr.Error(f"send a message of 1 to {MAX_MESSAGE_CHARS:,} characters", print_exception=False)
        answer = new_answer()
        try:
            settings = ChatSettings(max_tokens=max_tokens, temperature=temperature)
            prompt = prompt_tokens(tokenizer, [{"role": "user", "content": message}])
            stream = service.submit(prompt, settings.params(), client=client_name("api"))[0]
        except REFUSALS as error:
            raise gr.Error(in_words(error), print_exception=False) from None
        async for _ in follow(service, stream, answer):
            yield answer["text"]  # also while it only waits: a client that has gone is noticed at a yield
        if answer["error"]:
            raise gr.Error(answer["error"], print_exception=False)

    gr.api(ask, api_name="answer", concurrency_limit=None)
