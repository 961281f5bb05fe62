"""The switches of the engine on the page: policy, memory layout, sharing, sizes, pace.

Owns the components, what they send to the service, and that they show what is true when somebody else changed it.
Never knows how a change is carried out: the service drains, refuses or obeys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from viz.chat import REFUSALS, in_words
from viz.options import LONG

POLICIES = [
    ("static", "static"),
    ("continuous", "mixed"),
    ("decode first", "decode_first"),
    ("prefill first", "prefill_first"),
]
LAYOUTS = [("contiguous", "contiguous"), ("paged", "paged")]
SHARING = [("off", "off"), ("on", "on")]
SELECTIONS = [("take turns", "round_robin"), ("the same until they end", "sticky")]
PACES = [("full", 0.0), ("slow", 0.2), ("slowest", 1.0)]

LOCKED = "The switches of this server are locked, because they change the engine for everybody. Chat and panels work."


@dataclass(frozen=True)
class Controls:
    """The components."""

    policy: gr.Radio
    layout: gr.Radio
    sharing: gr.Radio
    pace: gr.Radio
    pause: gr.Button
    step: gr.Button
    block_size: gr.Number
    num_blocks: gr.Number
    max_num_seqs: gr.Number
    token_budget: gr.Number
    selection: gr.Radio
    apply: gr.Button
    reset: gr.Button

    @property
    def shown(self) -> list[Any]:
        """The components that follow the engine's state, in the order of `values`."""
        return [
            self.policy,
            self.layout,
            self.sharing,
            self.pace,
            self.pause,
            self.step,
            self.block_size,
            self.num_blocks,
            self.max_num_seqs,
            self.token_budget,
            self.selection,
        ]


def build(state: Mapping[str, Any], locked: bool, send_label: str) -> tuple[Controls, gr.Button]:
    """Lay out the switches, and before them the button that makes them interesting; call inside a `gr.Blocks`."""
    free = not locked
    with gr.Row(elem_id="switches"):
        send_all = gr.Button(send_label, variant="primary", elem_id="send-all", scale=0, min_width=190)
        policy = _segments("Batching", POLICIES, state["policy"], free, "policy")
        layout = _segments("KV memory", LAYOUTS, state["kv_layout"], free, "layout")
        shares = "on" if state["prefix_caching"] else "off"
        can_share = free and state["kv_layout"] != "contiguous"
        sharing = _segments("Prefix sharing", SHARING, shares, can_share, "sharing")
        pace = _segments("Pace", PACES, _pace(state), free, "pace")
        with gr.Row(elem_id="stepping", scale=0):
            pause = gr.Button("Pause", size="sm", interactive=free, min_width=78, elem_id="pause")
            step = gr.Button("One step", size="sm", interactive=False, min_width=84, elem_id="one-step")
    if locked:
        gr.HTML(f'<p class="pg-locked">{LOCKED}</p>', apply_default_css=False, elem_id="locked")
    with gr.Accordion("Sizes: blocks, slots, tokens a step", open=False, elem_id="sizes"), gr.Row(elem_id="size-row"):
        block_size = _size(state, "block_size", "Tokens a block", free)
        num_blocks = _size(state, "num_blocks", "Blocks", free)
        max_num_seqs = _size(state, "max_num_seqs", "Slots", free)
        token_budget = _size(state, "max_num_batched_tokens", "Tokens a step", free)
        selection = gr.Radio(
            SELECTIONS,
            value=state["decode_selection"],
            label="When more are ready to decode than slots",
            interactive=free,
            min_width=290,
        )
        apply = gr.Button("Apply", size="sm", interactive=free, min_width=90, elem_id="apply-sizes")
        reset = gr.Button("As at the start", size="sm", interactive=free, min_width=110, elem_id="reset-settings")
    controls = Controls(
        policy,
        layout,
        sharing,
        pace,
        pause,
        step,
        block_size,
        num_blocks,
        max_num_seqs,
        token_budget,
        selection,
        apply,
        reset,
    )
    return controls, send_all


def _segments(label: str, choices: list[Any], value: Any, free: bool, name: str) -> gr.Radio:
    return gr.Radio(
        choices,
        value=value,
        label=label,
        interactive=free,
        elem_classes="segmented",
        elem_id=f"switch-{name}",
        scale=0,
        min_width=10,
    )


def _size(state: Mapping[str, Any], key: str, label: str, free: bool) -> gr.Number:
    return gr.Number(value=state[key], label=label, precision=0, minimum=1, interactive=free, min_width=120)


def _pace(state: Mapping[str, Any]) -> float | None:
    delay = float(state.get("step_delay_s") or 0.0)
    return delay if any(delay == pace for _, pace in PACES) else None


def pending(state: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that wait for the pool to empty, {} when none do."""
    return dict(state.get("draining_for") or {})


def values(state: Mapping[str, Any], locked: bool) -> list[Any]:
    """Updates for `Controls.shown` that make them show `state`. A change being waited for already shows."""
    wanted = dict(state) | pending(state)
    paused = bool(state["paused"])
    can_share = wanted["kv_layout"] != "contiguous"
    return [
        gr.update(value=wanted["policy"]),
        gr.update(value=wanted["kv_layout"]),
        gr.update(value="on" if wanted["prefix_caching"] else "off", interactive=can_share and not locked),
        gr.update(value=_pace(state)),
        gr.update(value="Go on" if paused else "Pause"),
        gr.update(interactive=paused and not locked),
        gr.update(value=wanted["block_size"]),
        gr.update(value=wanted["num_blocks"]),
        gr.update(value=wanted["max_num_seqs"]),
        gr.update(value=wanted["max_num_batched_tokens"]),
        gr.update(value=wanted["decode_selection"]),
    ]


_SIZES = ("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens")
_ALL = (*_SIZES, "policy", "kv_layout", "prefix_caching", "decode_selection")


def wire(controls: Controls, service: Any, locked: bool) -> None:
    """Connect the switches to the service. A refusal is told in words, and the switches show again what is true."""
    at_start = {key: service.state()[key] for key in _ALL}

    def change(changes: Mapping[str, Any]) -> list[Any]:
        if changes and not locked:
            try:
                service.control(dict(changes))
            except REFUSALS as error:
                gr.Warning(in_words(error), title="Not changed")
        return values(service.state(), locked)

    def resize(*sizes: Any) -> list[Any]:
        state = service.state()
        asked = dict(zip(_SIZES, sizes, strict=True))
        return change({key: int(size) for key, size in asked.items() if size is not None and size != state[key]})

    def reset() -> list[Any]:
        return change(at_start | {"paused": False, "step_delay_s": 0.0})

    def on(event: Any, make: Any, inputs: Any = None) -> None:
        event(lambda *value: change(make(*value)), inputs, controls.shown, **LONG)

    on(controls.policy.input, lambda v: {"policy": v}, controls.policy)
    on(controls.layout.input, lambda v: {"kv_layout": v}, controls.layout)
    on(controls.sharing.input, lambda v: {"prefix_caching": v == "on"}, controls.sharing)
    on(controls.selection.input, lambda v: {"decode_selection": v}, controls.selection)
    on(controls.pace.input, lambda v: {"step_delay_s": float(v or 0.0)}, controls.pace)
    on(controls.pause.click, lambda: {"paused": not service.state()["paused"]})
    on(controls.step.click, lambda: {"step": 1})
    sizes = [controls.block_size, controls.num_blocks, controls.max_num_seqs, controls.token_budget]
    controls.apply.click(resize, sizes, controls.shown, **LONG)
    controls.reset.click(reset, None, controls.shown, **LONG)
