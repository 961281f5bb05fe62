"""The switches of the engine on the page: policy, memory layout, sharing, sizes, pace.

Owns the components, what they send to the service, and that they show what is true when somebody else changed it.
Never knows how a change is carried out: the service drains, refuses or obeys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from viz.chat import in_words

POLICIES = [
    ("static", "static"),
    ("continuous", "mixed"),
    ("decode first", "decode_first"),
    ("prefill first", "prefill_first"),
]
LAYOUTS = [("contiguous", "contiguous"), ("paged", "paged")]
SELECTIONS = [("take turns", "round_robin"), ("same ones until they end", "sticky")]

LOCKED = "The switches of this server are locked: they change the engine for everybody. Chat and panels work."


@dataclass(frozen=True)
class Controls:
    """The components, in the order in which `values` fills them."""

    policy: gr.Radio
    layout: gr.Radio
    sharing: gr.Checkbox
    selection: gr.Radio
    block_size: gr.Number
    num_blocks: gr.Number
    max_num_seqs: gr.Number
    token_budget: gr.Number
    delay: gr.Slider
    pause: gr.Button
    step: gr.Button
    apply: gr.Button

    @property
    def shown(self) -> list[Any]:
        """The components whose value or label follows the engine's state."""
        return [
            self.policy,
            self.layout,
            self.sharing,
            self.selection,
            self.block_size,
            self.num_blocks,
            self.max_num_seqs,
            self.token_budget,
            self.delay,
            self.pause,
            self.step,
        ]


def build(state: Mapping[str, Any], locked: bool) -> tuple[Controls, gr.Accordion]:
    """Lay out the switches; call inside a `gr.Blocks`."""
    free = not locked
    with gr.Row(elem_id="switches", equal_height=False):
        policy = gr.Radio(
            POLICIES,
            value=state["policy"],
            label="Batching",
            interactive=free,
            elem_classes="segmented",
            scale=4,
            min_width=260,
        )
        layout = gr.Radio(
            LAYOUTS,
            value=state["kv_layout"],
            label="KV memory",
            interactive=free,
            elem_classes="segmented",
            scale=2,
            min_width=180,
        )
        sharing = gr.Checkbox(
            value=bool(state["prefix_caching"]),
            label="share equal beginnings",
            interactive=free,
            min_width=150,
            elem_id="sharing",
            scale=1,
        )
        with gr.Row(scale=2, elem_id="pace"):
            pause = gr.Button("Pause", size="sm", interactive=free, min_width=84, elem_id="pause")
            step = gr.Button("One step", size="sm", interactive=False, min_width=84, elem_id="one-step")
            delay = gr.Slider(
                0,
                1,
                value=float(state.get("step_delay_s") or 0.0),
                step=0.05,
                label="slow motion, s a step",
                interactive=free,
                min_width=150,
                elem_id="slow-motion",
                buttons=[],
            )
    with gr.Accordion("Sizes", open=False, elem_id="sizes") as sizes, gr.Row(equal_height=True):
        block_size = _size(state, "block_size", "Block size, tokens", free)
        num_blocks = _size(state, "num_blocks", "Pool, blocks", free)
        max_num_seqs = _size(state, "max_num_seqs", "Slots (requests a step)", free)
        token_budget = _size(state, "max_num_batched_tokens", "Token budget of a step", free)
        selection = gr.Radio(
            SELECTIONS,
            value=state["decode_selection"],
            label="Who decodes when more are ready than slots",
            interactive=free,
            min_width=220,
        )
        apply = gr.Button("Apply sizes", size="sm", interactive=free, min_width=110)
    controls = Controls(
        policy,
        layout,
        sharing,
        selection,
        block_size,
        num_blocks,
        max_num_seqs,
        token_budget,
        delay,
        pause,
        step,
        apply,
    )
    return controls, sizes


def _size(state: Mapping[str, Any], key: str, label: str, free: bool) -> gr.Number:
    return gr.Number(value=state[key], label=label, precision=0, minimum=1, interactive=free, min_width=130)


def values(state: Mapping[str, Any], locked: bool) -> list[Any]:
    """Updates for `Controls.shown` that make them show `state`. A change being waited for already shows."""
    wanted = dict(state) | pending(state)
    paused = bool(state["paused"])
    return [
        gr.update(value=wanted["policy"]),
        gr.update(value=wanted["kv_layout"]),
        gr.update(value=bool(wanted["prefix_caching"])),
        gr.update(value=wanted["decode_selection"]),
        gr.update(value=wanted["block_size"]),
        gr.update(value=wanted["num_blocks"]),
        gr.update(value=wanted["max_num_seqs"]),
        gr.update(value=wanted["max_num_batched_tokens"]),
        gr.update(value=float(state.get("step_delay_s") or 0.0)),
        gr.update(value="Go on" if paused else "Pause"),
        gr.update(interactive=paused and not locked),
    ]


def pending(state: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that wait for the pool to empty, {} when none do."""
    draining = state.get("draining")
    return dict(draining) if isinstance(draining, Mapping) else {}


def wire(controls: Controls, service: Any, locked: bool) -> None:
    """Connect the switches to the service. A refusal is told in words, and the switches show again what is true."""

    def change(**changes: Any) -> list[Any]:
        if not locked:
            try:
                service.control(changes)
            except (ValueError, RuntimeError) as error:
                gr.Warning(in_words(error), title="Not changed")
        return values(service.state(), locked)

    shown = controls.shown
    quick: dict[str, Any] = {
        "show_progress": "hidden",
        "api_visibility": "private",
        "concurrency_limit": None,
        "queue": False,
    }
    controls.policy.input(lambda v: change(policy=v), controls.policy, shown, **quick)
    controls.layout.input(lambda v: change(kv_layout=v), controls.layout, shown, **quick)
    controls.sharing.input(lambda v: change(prefix_caching=bool(v)), controls.sharing, shown, **quick)
    controls.selection.input(lambda v: change(decode_selection=v), controls.selection, shown, **quick)
    controls.delay.release(lambda v: change(step_delay_s=float(v)), controls.delay, shown, **quick)
    controls.pause.click(lambda: change(paused=not service.state()["paused"]), None, shown, **quick)
    controls.step.click(lambda: change(step=1), None, shown, **quick)

    def resize(block_size: Any, num_blocks: Any, slots: Any, budget: Any) -> list[Any]:
        sizes = {
            "block_size": block_size,
            "num_blocks": num_blocks,
            "max_num_seqs": slots,
            "max_num_batched_tokens": budget,
        }
        state = service.state()
        return change(**{key: int(size) for key, size in sizes.items() if size is not None and size != state[key]})

    sizes = [controls.block_size, controls.num_blocks, controls.max_num_seqs, controls.token_budget]
    controls.apply.click(resize, sizes, shown, **quick)
