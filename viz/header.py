"""The head of the page: what runs now, in one line, kept true by the browser.

Owns the facts that the line shows. Never knows how they are drawn (`static/page/status.js`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from viz.scripts import mount_script

SHOWN = (
    "step",
    "policy",
    "decode_selection",
    "kv_layout",
    "prefix_caching",
    "block_size",
    "num_blocks",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "paused",
    "step_delay_s",
    "draining",
    "draining_for",
    "model",
    "device",
    "dtype",
    "quantization",
    "replay",
)


def status_of(service: Any, locked: bool, load: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `/ui/state` answers: settings and counts, no text of anybody. Whoever was let in counts as running, also
    with half a prompt read."""
    state: Mapping[str, Any] = service.state()
    status = {key: state[key] for key in SHOWN if key in state}
    queue = set(state.get("queue") or ())
    there = {*(state.get("pending_prefill") or ()), *(state.get("pending_decode") or ())}
    status["num_waiting"] = len(queue)
    status["num_running"] = len(there - queue)
    status["locked"] = locked
    status["load"] = dict(load) if load else None
    status["down"] = service.health()
    status["can_restart"] = hasattr(service, "restart")
    return status


def build(service: Any, locked: bool) -> gr.HTML:
    """The line; its `sync` event says that settings are not what this page shows any more."""
    return gr.HTML(
        value=status_of(service, locked) | {"down": None},  # built before the engine starts; the page asks at once
        html_template='<header class="pg-header"></header>',
        js_on_load=mount_script("status.js", "mountStatus", ".pg-header", "props", ("sync",)),
        apply_default_css=False,
        elem_id="status",
    )
