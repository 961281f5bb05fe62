"""The page: chat, workloads, switches and live panels, put together.

Owns the layout and the wiring between its parts. Never knows the engine beyond the service it is handed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import gradio as gr
from fastapi import FastAPI, Request

from engine.serving.access import refuse_cross_site
from engine.serving.errors import ApiError
from engine.serving.load import LoadRunner
from engine.serving.service_errors import EngineDead
from viz import client_api, compare_tab, controls, header, load_panel, panels, replay_bar, talk, theme, trace_tab
from viz.chat import Chat
from viz.compare import Comparison
from viz.lessons import tab as lessons_tab
from viz.load_panel import LoadPanel
from viz.options import QUICK, PageOptions
from viz.security import ContentSecurityPolicy
from viz.wall import Wall, load_prompts

TITLE = "tiny-vllm playground"
NUM_EXAMPLES = 8
UPLOAD_KEPT_S = 3600


@dataclass(frozen=True)
class Page:
    """A built page: what `mount` needs beside the Blocks."""

    demo: gr.Blocks
    service: Any
    load: LoadPanel
    comparison: Comparison
    lessons: lessons_tab.Lessons
    traces: trace_tab.TraceViewer
    options: PageOptions


def build(service: Any, tokenizer: Any, options: PageOptions | None = None) -> Page:
    """The page over `service` (`engine.serving.service.EngineService`, or a recorded run), to be handed to `mount`."""
    options = options or PageOptions()
    is_recorded = replay_bar.is_recorded(service)
    locked = options.lock_controls or is_recorded
    prompts = load_prompts()
    runner = LoadRunner(service, _vocabulary(tokenizer, prompts))
    load = LoadPanel(service, runner, locked)
    comparison = Comparison(service, runner, locked)
    with gr.Blocks(
        title=TITLE, analytics_enabled=False, fill_width=True, delete_cache=(UPLOAD_KEPT_S // 4, UPLOAD_KEPT_S)
    ) as demo:
        status = header.build(service, locked)
        with gr.Tabs(elem_id="views"):
            with gr.Tab("Live", id="live"):
                if is_recorded:
                    replay_bar.build(service, demo, options.lock_controls)
                    panels.panel_html("live")
                else:
                    _build_live(service, tokenizer, options, load, [status.sync, demo.load])
            with gr.Tab("Compare", id="compare"):
                compare_tab.build(comparison, service.state(), locked)
            with gr.Tab("Lessons", id="lessons"):
                lessons = lessons_tab.build(service, None if is_recorded else runner)
            with gr.Tab("Replay", id="replay"):
                traces = trace_tab.build()
    demo.queue(default_concurrency_limit=None)
    return Page(demo, service, load, comparison, lessons, traces, options)


def _build_live(
    service: Any, tokenizer: Any, options: PageOptions, load: LoadPanel, when_changed: Sequence[Callable[..., Any]]
) -> None:
    """Switches, chat and workloads beside the live panels. `when_changed` are the events upon which the switches are
    to show again what is true."""
    locked = options.lock_controls
    wall = Wall(service, tokenizer, load_prompts())
    switches, send_all = controls.build(service.state(), locked, f"Send {NUM_EXAMPLES} prompts at once")
    with gr.Row(elem_id="main"):
        with gr.Column(scale=5, min_width=330, elem_id="left"):
            with gr.Tabs(elem_id="talk") as tabs:
                with gr.Tab("Chat", id="chat"):
                    chat_tab = talk.build_chat(wall.choose(3))
                with gr.Tab("Many at once", id="wall"):
                    wall_tab = talk.build_wall()
                with gr.Tab("Workloads", id="load"):
                    load_panel.build(load)
            sampling = talk.build_sampling(options)
        with gr.Column(scale=9, min_width=330, elem_id="right"):
            panels.panel_html("live")
    talk.wire_chat(Chat(service, tokenizer), chat_tab, sampling)
    talk.wire_wall(wall, wall_tab, send_all, NUM_EXAMPLES, tabs, "wall", sampling)
    client_api.build(service, tokenizer)
    controls.wire(switches, service, locked)
    for event in when_changed:
        event(lambda: controls.values(service.state(), locked), None, switches.shown, **QUICK)


def mount(app: FastAPI, page: Page) -> FastAPI:
    """Serve `page` at "/" of `app`, with everything under /ui/ that its browser code asks for. Call it last: routes
    registered before win."""
    feed = panels.register_routes(app, page.service)
    page.comparison.add_run = page.lessons.add_run = page.traces.add_run = feed.add_run

    @app.get("/ui/state", include_in_schema=False)
    def ui_state() -> dict[str, Any]:
        page.service.watch()  # only pages that are looked at ask
        return header.status_of(page.service, page.options.lock_controls, page.load.progress())

    @app.post("/ui/restart", include_in_schema=False)
    def ui_restart(request: Request) -> dict[str, Any]:
        """A new engine after the old one has died; nothing happens while it lives, so that anybody may ask."""
        refuse_cross_site(request)
        try:
            page.service.restart()
        except EngineDead as error:
            raise ApiError(503, str(error)) from None
        return header.status_of(page.service, page.options.lock_controls, page.load.progress())

    app.add_middleware(ContentSecurityPolicy)
    return gr.mount_gradio_app(
        app,
        page.demo,
        path="/",
        theme=theme.theme(),
        css=theme.css(),
        head='<meta name="viewport" content="width=device-width, initial-scale=1">',
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        show_error=True,
        max_file_size="16mb",
    )


def _vocabulary(tokenizer: Any, prompts: list[str]) -> list[int]:
    """Token ids for the load generator's prompts: those of real words, so that nothing special is among them."""
    return sorted({token for prompt in prompts for token in tokenizer.encode(prompt, add_special_tokens=False)})
