"""Above the panels of a recorded run: play, pause, step, speed.

Owns these components and what they send to `engine.serving.replay_service`. Never knows what is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from viz.chat import in_words
from viz.options import LONG, QUICK
from viz.trace_tab import plain_words

SPEEDS = [("¼ ×", 0.25), ("1 ×", 1.0), ("4 ×", 4.0), ("16 ×", 16.0)]


def is_recorded(service: Any) -> bool:
    """Whether there is a recording behind these doors and no engine."""
    return "replay" in service.state()


def build(service: Any, demo: gr.Blocks, locked: bool) -> None:
    """Lay out and wire the bar; call inside a `gr.Blocks`. `locked`: it plays, and nobody can stop it for everybody."""
    state = service.state()
    free = {"interactive": not locked}
    gr.Markdown(
        f"**A recorded run of {plain_words(state['model'])}.** Nothing is computed here and nobody answers; everything "
        "else is as it was: play it, stop it, look at every step.",
        elem_id="replay-about",
    )
    with gr.Row(elem_id="switches"):
        play = gr.Button(_play_label(state), variant="primary", min_width=110, elem_id="replay-play", scale=0, **free)
        step = gr.Button("One step", min_width=90, elem_id="replay-step", scale=0, **free)
        again = gr.Button("From the start", min_width=130, elem_id="replay-again", scale=0, **free)
        look = {"elem_classes": "segmented", "scale": 0, "min_width": 10}
        speed = gr.Radio(SPEEDS, value=1.0, label="Speed", elem_id="replay-speed", **look, **free)

    def change(changes: Mapping[str, Any]) -> str:
        try:
            now = service.control({} if locked else dict(changes))
        except ValueError as error:
            gr.Warning(in_words(error), title="Not changed")
            now = service.state()
        return _play_label(now)

    play.click(lambda: change({"paused": not service.state()["paused"]}), None, play, **LONG)
    step.click(lambda: change({"step": 1}), None, play, **LONG)
    again.click(lambda: change({"seek": 0, "paused": False}), None, play, **LONG)
    speed.input(lambda value: change({"speed": float(value)}), speed, play, **LONG)
    demo.load(lambda: change({}), None, play, **QUICK)


def _play_label(state: Mapping[str, Any]) -> str:
    return "Play" if state["paused"] else "Pause"
