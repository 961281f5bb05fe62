"""The left side of the page: a conversation with the model, and many prompts at once.

Owns these components and their wiring. Never knows how answers are drawn or computed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from typing import Any

import gradio as gr

from viz.chat import Chat, ChatSettings
from viz.options import LONG, QUICK, PageOptions
from viz.scripts import mount_script
from viz.wall import Wall

SAMPLING = {"temperature": 0.3, "top_p": 0.9, "top_k": 0, "repetition_penalty": 1.05}
"""Where a model brings no `generation_config` of its own: cautious, because small models invent words when hot."""


@dataclass(frozen=True)
class ChatTab:
    """The components of a conversation."""

    log: gr.HTML
    message: gr.Textbox
    send: gr.Button
    stop: gr.Button


@dataclass(frozen=True)
class WallTab:
    """The components of the wall of answers."""

    cards: gr.HTML
    stop: gr.Button
    again: gr.Button


def build_chat(suggestions: list[str]) -> ChatTab:
    """Lay out the conversation; call inside a tab."""
    log = gr.HTML(
        value={"turns": [], "saved": []},
        html_template='<div class="pg-chat"></div>',
        js_on_load=mount_script("chat.js", "mountChat", ".pg-chat", "props, watch", ("regenerate", "suggest")),
        apply_default_css=False,
        elem_id="chat",
        suggestions=suggestions,
    )
    with gr.Row(equal_height=True, elem_id="composer"):
        message = gr.Textbox(
            placeholder="Ask the model …",
            label="Message",
            show_label=False,
            lines=1,
            max_lines=8,
            container=False,
            scale=8,
            autofocus=True,
            elem_id="message",
        )
        send = gr.Button("Send", variant="primary", scale=0, min_width=76, elem_id="send")
        stop = gr.Button("Stop", variant="stop", scale=0, min_width=76, visible=False, elem_id="stop")
    return ChatTab(log, message, send, stop)


def build_wall() -> WallTab:
    """Lay out the wall of answers; call inside a tab."""
    cards = gr.HTML(
        value={"run": 0, "cards": []},
        html_template='<div class="pg-wall-box"></div>',
        js_on_load=mount_script("answers.js", "mountWall", ".pg-wall-box", "props, watch"),
        apply_default_css=False,
        elem_id="wall",
    )
    with gr.Row(elem_id="wall-tools"):
        again = gr.Button("Send others", size="sm", min_width=120, elem_id="send-others")
        stop = gr.Button("Stop all", size="sm", variant="stop", visible=False, min_width=120, elem_id="stop-all")
    return WallTab(cards, stop, again)


def build_sampling(options: PageOptions) -> list[gr.components.Component]:
    """Lay out system prompt and sampling; the components in the order of `ChatSettings`."""
    defaults = SAMPLING | {name: value for name, value in options.sampling.items() if name in SAMPLING}
    with gr.Accordion("System prompt and sampling", open=False, elem_id="sampling"):
        system = gr.Textbox(
            value=options.system_prompt,
            label="System prompt",
            lines=2,
            max_lines=6,
            placeholder="empty: the model's own, if its template has one",
        )
        with gr.Row():
            max_tokens = gr.Number(
                options.max_tokens, precision=0, minimum=1, label="Longest answer, tokens", min_width=120
            )
            temperature = gr.Slider(
                0, 2, value=defaults["temperature"], step=0.05, label="Temperature (0: the likeliest)", min_width=150
            )
        with gr.Row():
            top_p = gr.Slider(0, 1, value=defaults["top_p"], step=0.01, label="top-p (1: off)", min_width=150)
            min_p = gr.Slider(0, 1, value=0.0, step=0.01, label="min-p (0: off)", min_width=150)
        with gr.Row():
            top_k = gr.Number(defaults["top_k"], precision=0, minimum=-1, label="top-k (0: off)", min_width=100)
            penalty = gr.Slider(
                1, 2, value=defaults["repetition_penalty"], step=0.01, label="Repetition penalty", min_width=150
            )
            seed = gr.Number(None, precision=0, label="Seed (empty: new)", min_width=100)
    return [system, max_tokens, temperature, top_p, top_k, min_p, penalty, seed]


def chat_settings(*typed: Any) -> ChatSettings:
    """What the components of `build_sampling` say; an emptied field means the default."""
    defaults = ChatSettings()
    values = {}
    for spec, value in zip(fields(ChatSettings), typed, strict=True):
        kind = type(getattr(defaults, spec.name))
        if value is not None:
            values[spec.name] = value if spec.name == "seed" else kind(value)
    return ChatSettings(**values)


def wire_chat(chat: Chat, tab: ChatTab, sampling: list[Any]) -> None:
    """Connect the conversation. While an answer grows, Send gives its place to Stop."""

    async def run(updates: AsyncIterator[Any]) -> AsyncIterator[Any]:
        first = True
        async for update in updates:
            if first:
                yield update, gr.update(value=""), gr.update(visible=False), gr.update(visible=True)
                first = False
            else:
                yield update, gr.skip(), gr.skip(), gr.skip()
        yield gr.skip(), gr.skip(), gr.update(visible=True), gr.update(visible=False)

    async def ask(value: Any, text: str, *typed: Any) -> AsyncIterator[Any]:
        async for update in run(chat.ask(value, text, chat_settings(*typed))):
            yield update

    async def suggest(value: Any, *typed: Any) -> AsyncIterator[Any]:
        text = str(value.get("ask", "")) if isinstance(value, dict) else ""
        async for update in run(chat.ask(value, text, chat_settings(*typed))):
            yield update

    async def again(value: Any, *typed: Any) -> AsyncIterator[Any]:
        async for update in run(chat.again(value, chat_settings(*typed))):
            yield update

    outputs = [tab.log, tab.message, tab.send, tab.stop]
    gr.on([tab.message.submit, tab.send.click], ask, [tab.log, tab.message, *sampling], outputs, **LONG)
    tab.log.suggest(suggest, [tab.log, *sampling], outputs, **LONG)
    tab.log.regenerate(again, [tab.log, *sampling], outputs, **LONG)
    tab.stop.click(chat.stop, tab.log, None, **QUICK)


def wire_wall(
    wall: Wall, tab: WallTab, send: gr.Button, count: int, tabs: gr.Tabs, tab_id: str, sampling: list[Any]
) -> None:
    """Connect the wall: `send` also brings its tab to the front."""
    turns = iter(range(1, 1_000_000_000))

    async def run(prompts: list[str], typed: tuple[Any, ...]) -> AsyncIterator[Any]:
        first = True
        async for update in wall.send(prompts, chat_settings(*typed)):
            if first:
                yield update, gr.update(interactive=False), gr.update(visible=True), gr.update(interactive=False)
                first = False
            else:
                yield update, gr.skip(), gr.skip(), gr.skip()
        yield gr.skip(), gr.update(interactive=True), gr.update(visible=False), gr.update(interactive=True)

    async def examples(*typed: Any) -> AsyncIterator[Any]:
        async for update in run(wall.choose(count), typed):
            yield update

    async def others(*typed: Any) -> AsyncIterator[Any]:
        async for update in run(wall.choose(count, seed=next(turns)), typed):
            yield update

    outputs = [tab.cards, send, tab.stop, tab.again]
    send.click(lambda: gr.Tabs(selected=tab_id), None, tabs, **QUICK)
    send.click(examples, sampling, outputs, **LONG)
    tab.again.click(others, sampling, outputs, **LONG)
    tab.stop.click(wall.stop, tab.cards, None, **QUICK)
