"""The page: chat, switches and live panels, put together.

Owns the layout and the wiring between its parts. Never knows the engine beyond the service it is handed.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import gradio as gr
from fastapi import FastAPI

from viz import controls, header, panels, theme
from viz.chat import Chat, ChatSettings
from viz.security import ContentSecurityPolicy
from viz.wall import Wall, load_prompts

TITLE = "tiny-vllm playground"
SCRIPTS = ("answers.js", "chat.js", "status.js")
NUM_EXAMPLES = 8


@dataclass(frozen=True, slots=True)
class PageOptions:
    """What the command line says about the page. `sampling` are the model's own defaults (`generation_config`)."""

    lock_controls: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    system_prompt: str = ""
    max_tokens: int = 256


QUICK: dict[str, Any] = {
    "show_progress": "hidden",
    "api_visibility": "private",
    "concurrency_limit": None,
    "queue": False,
}
LONG: dict[str, Any] = {"show_progress": "hidden", "concurrency_limit": None, "api_visibility": "private"}


def build(service: Any, tokenizer: Any, options: PageOptions | None = None) -> gr.Blocks:
    """The page over `service` (`engine.serving.service.EngineService`), to be handed to `mount`."""
    options = options or PageOptions()
    state = service.state()
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_width=True) as demo:
        status = header.build(service, options.lock_controls)
        switches, _ = controls.build(state, options.lock_controls)
        with gr.Row(elem_id="main"):
            with gr.Column(scale=5, min_width=340, elem_id="left"):
                talk = _talk_column(service, tokenizer, options)
            with gr.Column(scale=9, min_width=340, elem_id="right"):
                panels.panel_html("live")
        controls.wire(switches, service, options.lock_controls)
        refresh: dict[str, Any] = {"fn": lambda: controls.values(service.state(), options.lock_controls), **QUICK}
        status.sync(outputs=switches.shown, **refresh)
        demo.load(outputs=switches.shown, **refresh)
        del talk
    demo.queue(default_concurrency_limit=None)
    return demo


def mount(app: FastAPI, demo: gr.Blocks, service: Any, options: PageOptions | None = None) -> FastAPI:
    """Serve `demo` at "/" of `app`, with everything under /ui/ that its browser code asks for. Call it last: routes
    registered before win."""
    options = options or PageOptions()
    panels.register_routes(app, service)

    @app.get("/ui/state", include_in_schema=False)
    def ui_state() -> dict[str, Any]:
        return header.status_of(service, options.lock_controls)

    app.add_middleware(ContentSecurityPolicy)
    return gr.mount_gradio_app(
        app,
        demo,
        path="/",
        theme=theme.theme(),
        css=theme.css(),
        head=_head(),
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        show_error=True,
        max_file_size="4mb",
    )


def _head() -> str:
    base = f"ui/static/{panels.static_version()}/page"
    scripts = "".join(f'<script src="{base}/{name}"></script>' for name in SCRIPTS)
    return f'<meta name="viewport" content="width=device-width, initial-scale=1">{scripts}'


def _talk_column(service: Any, tokenizer: Any, options: PageOptions) -> gr.Tabs:
    chat = Chat(service, tokenizer)
    wall = Wall(service, tokenizer, load_prompts())
    with gr.Tabs(elem_id="talk") as tabs:
        with gr.Tab("Chat", id="chat"):
            log = gr.HTML(
                value={"turns": [], "saved": []},
                html_template='<div class="pg-chat"></div>',
                js_on_load="Playground.mountChat(element.querySelector('.pg-chat'), trigger, props, watch,"
                " 'regenerate', 'suggest')",
                apply_default_css=False,
                elem_id="chat",
                suggestions=wall.choose(3),
            )
            with gr.Row(equal_height=True, elem_id="composer"):
                message = gr.Textbox(
                    placeholder="Ask the model …",
                    show_label=False,
                    lines=1,
                    max_lines=8,
                    container=False,
                    scale=8,
                    autofocus=True,
                    elem_id="message",
                    label="Message",
                )
                send = gr.Button("Send", variant="primary", scale=0, min_width=76, elem_id="send")
                stop = gr.Button("Stop", variant="stop", scale=0, min_width=76, visible=False, elem_id="stop")
            settings = _settings(options)
        with gr.Tab("Eight at once", id="wall"):
            with gr.Row(equal_height=True):
                count = gr.Slider(2, 16, value=NUM_EXAMPLES, step=1, label="prompts", min_width=120, buttons=[])
                send_all = gr.Button("Send 8 prompts at once", variant="primary", elem_id="send-all", min_width=160)
                stop_all = gr.Button("Stop all", variant="stop", visible=False, min_width=90, elem_id="stop-all")
            cards = gr.HTML(
                value={"run": 0, "cards": []},
                html_template='<div class="pg-wall-box"></div>',
                js_on_load="Playground.mountWall(element.querySelector('.pg-wall-box'), props, watch)",
                apply_default_css=False,
                elem_id="wall",
            )
    inputs = list(settings.values())
    _wire_chat(chat, log, message, send, stop, inputs)
    _wire_wall(wall, cards, count, send_all, stop_all, inputs)
    return tabs


def _settings(options: PageOptions) -> dict[str, Any]:
    sampling = {"temperature": 0.7, "top_p": 0.95, "top_k": 0, "repetition_penalty": 1.0} | dict(options.sampling)
    with gr.Accordion("System prompt and sampling", open=False, elem_id="sampling"):
        system = gr.Textbox(
            value=options.system_prompt,
            label="System prompt",
            lines=2,
            max_lines=6,
            placeholder="empty: the model's own, if its template has one",
        )
        with gr.Row():
            max_tokens = gr.Slider(
                1, 2048, value=options.max_tokens, step=1, label="Longest answer, tokens", min_width=150
            )
            temperature = gr.Slider(
                0,
                2,
                value=sampling["temperature"],
                step=0.05,
                label="Temperature (0: always the likeliest)",
                min_width=150,
            )
        with gr.Row():
            top_p = gr.Slider(0, 1, value=sampling["top_p"], step=0.01, label="top-p", min_width=110)
            top_k = gr.Number(value=sampling["top_k"], precision=0, label="top-k (0: off)", minimum=-1, min_width=90)
            penalty = gr.Slider(
                1, 2, value=sampling["repetition_penalty"], step=0.01, label="Repetition penalty", min_width=110
            )
            seed = gr.Number(value=None, precision=0, label="Seed (empty: new)", min_width=90)
    return {
        "system": system,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "repetition_penalty": penalty,
        "seed": seed,
    }


def _chat_settings(
    system: str, max_tokens: Any, temperature: Any, top_p: Any, top_k: Any, penalty: Any, seed: Any
) -> ChatSettings:
    return ChatSettings(
        system=str(system or ""),
        max_tokens=int(max_tokens),
        temperature=float(temperature),
        top_p=float(top_p),
        top_k=int(top_k or 0),
        repetition_penalty=float(penalty),
        seed=None if seed is None else int(seed),
    )


def _wire_chat(chat: Chat, log: Any, message: Any, send: Any, stop: Any, settings: list[Any]) -> None:
    busy = (gr.update(visible=False), gr.update(visible=True))
    free = (gr.update(visible=True), gr.update(visible=False))
    outputs = [log, message, send, stop]

    async def run(updates: AsyncIterator[Any]) -> AsyncIterator[Any]:
        first = True
        async for update in updates:
            if first:
                yield update, gr.update(value=""), *busy
                first = False
            else:
                yield update, gr.skip(), gr.skip(), gr.skip()
        yield gr.skip(), gr.skip(), *free

    async def ask(value: Any, text: str, *rest: Any) -> AsyncIterator[Any]:
        async for update in run(chat.ask(value, text, _chat_settings(*rest))):
            yield update

    async def suggest(value: Any, *rest: Any) -> AsyncIterator[Any]:
        text = str(value.get("ask", "")) if isinstance(value, dict) else ""
        async for update in run(chat.ask(value, text, _chat_settings(*rest))):
            yield update

    async def again(value: Any, *rest: Any) -> AsyncIterator[Any]:
        async for update in run(chat.again(value, _chat_settings(*rest))):
            yield update

    gr.on([message.submit, send.click], ask, [log, message, *settings], outputs, **LONG)
    log.suggest(suggest, [log, *settings], outputs, **LONG)
    log.regenerate(again, [log, *settings], outputs, **LONG)
    stop.click(chat.stop, log, None, **QUICK)


def _wire_wall(wall: Wall, cards: Any, count: Any, send: Any, stop: Any, settings: list[Any]) -> None:
    async def run(number: Any, *rest: Any) -> AsyncIterator[Any]:
        first = True
        async for update in wall.send(wall.choose(int(number)), _chat_settings(*rest)):
            if first:
                yield update, gr.update(interactive=False), gr.update(visible=True)
                first = False
            else:
                yield update, gr.skip(), gr.skip()
        yield gr.skip(), gr.update(interactive=True), gr.update(visible=False)

    send.click(run, [count, *settings], [cards, send, stop], **LONG)
    stop.click(wall.stop, cards, None, **QUICK)
    count.change(None, count, send, js="(n) => `Send ${n} prompts at once`", **QUICK)
