"""The tab of the comparison: questions to start with, both sides set by hand, the result.

Owns these components and their wiring. Never knows how a comparison is made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import gradio as gr

from engine.telemetry.figures import Targets
from viz import panels
from viz.compare import SIZES, CompareRequest, Comparison
from viz.compare_presets import QUESTIONS, SETTING_KEYS, WORKLOADS, Question, pool_for
from viz.controls import LAYOUTS, POLICIES, SHARING
from viz.options import LONG, QUICK
from viz.scripts import mount_script
from viz.served import SERVED

SIZE_LABELS = {
    "block_size": "Tokens a block",
    "num_blocks": "Blocks",
    "max_num_seqs": "Slots",
    "max_num_batched_tokens": "Tokens a step",
}
WHERE = [("simulated, in a blink", "simulated"), ("on the real model", "real")]


def build(comparison: Comparison, state: Mapping[str, Any], locked: bool) -> None:
    """Lay out and wire the tab; call inside a `gr.Tab`."""
    gr.HTML(
        '<p class="pg-hint">The same requests, twice, under two settings, side by side on one time axis.</p>',
        apply_default_css=False,
    )
    with gr.Row(elem_id="questions", equal_height=True):
        buttons = [
            gr.Button(f"{q.title}\n{q.story}", elem_classes="preset", elem_id=f"question-{q.name}", min_width=200)
            for q in QUESTIONS
        ]
    with gr.Accordion("Set it yourself", open=False, elem_id="compare-settings"):
        inputs = _inputs(state, locked)
        with gr.Row():
            go = gr.Button("Compare", variant="primary", min_width=120, elem_id="compare-go")
            stop = gr.Button("Stop", variant="stop", min_width=90, visible=False, elem_id="compare-stop")
    result = gr.HTML(
        value={},
        html_template='<div class="pg-compare"></div>',
        js_on_load=mount_script("compare.js", "mountCompare", ".pg-compare", "props, watch"),
        apply_default_css=False,
        elem_id="compare-result",
    )
    pictures = panels.panel_html("compare")
    _wire(comparison, buttons, inputs, go, stop, result, pictures)


def _inputs(state: Mapping[str, Any], locked: bool) -> dict[str, Any]:
    first = QUESTIONS[0]
    with gr.Row(equal_height=True):
        workload = gr.Dropdown(
            [*WORKLOADS, SERVED],
            value=first.workload,
            label="Workload",
            min_width=240,
            scale=2,
            elem_id="compare-workload",
        )
        seed = gr.Number(0, precision=0, minimum=0, label="Seed", min_width=80)
        where = gr.Radio(WHERE, value="simulated", label="Run it", interactive=not locked, min_width=240, scale=2)
    inputs = {"workload": workload, "seed": seed, "where": where}
    with gr.Row(equal_height=True):
        for side, settings in (("a", first.a), ("b", first.b)):
            with gr.Column(min_width=300, elem_classes="compare-side"):
                name = {"a": "First", "b": "Second"}[side]
                inputs[f"{side}_policy"] = gr.Radio(POLICIES, value=settings["policy"], label=f"{name}: batching")
                inputs[f"{side}_kv_layout"] = gr.Radio(LAYOUTS, value=settings["kv_layout"], label=f"{name}: KV memory")
                shares = "on" if settings["prefix_caching"] else "off"
                inputs[f"{side}_prefix_caching"] = gr.Radio(SHARING, value=shares, label=f"{name}: prefix sharing")
    with gr.Row(equal_height=True):
        for key in SIZES:
            inputs[key] = gr.Number(state[key], precision=0, minimum=1, label=SIZE_LABELS[key], min_width=90)
        inputs["ttft_ms"] = gr.Number(1000, minimum=1, label="Good: first token within, ms", min_width=130)
        inputs["itl_ms"] = gr.Number(100, minimum=1, label="Good: gaps under, ms", min_width=130)
    return inputs


def _wire(
    comparison: Comparison,
    buttons: list[gr.Button],
    inputs: dict[str, Any],
    go: gr.Button,
    stop: gr.Button,
    result: gr.HTML,
    pictures: gr.HTML,
) -> None:
    names, components = list(inputs), list(inputs.values())
    outputs = [result, pictures, go, stop]

    async def run(*typed: Any) -> AsyncIterator[Any]:
        # No pictures of the comparison before under the words of this one.
        yield {"status": "working …"}, {"runs": []}, gr.update(interactive=False), gr.update(visible=True)
        async for value in comparison.run(_request(dict(zip(names, typed, strict=True)))):
            runs = value.pop("runs", None)
            yield value, gr.skip() if runs is None else {"runs": runs}, gr.skip(), gr.skip()
        yield gr.skip(), gr.skip(), gr.update(interactive=True), gr.update(visible=False)

    def show_pool(title: str, *sizes: Any) -> Any:
        now = comparison.sizes_now()
        typed = {key: int(value or now[key]) for key, value in zip(SIZES, sizes, strict=True)}
        return pool_for(title, typed, now)

    workload, num_blocks = inputs["workload"], inputs["num_blocks"]
    workload.input(show_pool, [workload, *(inputs[key] for key in SIZES)], num_blocks, **QUICK)
    go.click(run, components, outputs, **LONG)
    stop.click(comparison.stop, None, None, **QUICK)
    for button, question in zip(buttons, QUESTIONS, strict=True):
        event = button.click(lambda chosen=question: _settings_of(chosen, names, comparison), None, components, **QUICK)
        event.then(run, components, outputs, **LONG)


def _settings_of(question: Question, names: list[str], comparison: Comparison) -> list[Any]:
    """Updates that make the inputs show `question`, on the engine's present sizes where it does not set its own."""
    values: dict[str, Any] = {"workload": question.workload, "seed": 0, "where": "simulated"}
    for side, settings in (("a", question.a), ("b", question.b)):
        for key in SETTING_KEYS:
            values[f"{side}_{key}"] = settings[key]
        values[f"{side}_prefix_caching"] = "on" if settings["prefix_caching"] else "off"
    state = comparison.sizes_now()
    for key in SIZES:
        values[key] = question.sizes.get(key, state[key])
    return [gr.update(value=values[name]) if name in values else gr.skip() for name in names]


def _request(typed: Mapping[str, Any]) -> CompareRequest:
    def side(name: str) -> dict[str, Any]:
        return {
            "policy": typed[f"{name}_policy"],
            "kv_layout": typed[f"{name}_kv_layout"],
            "prefix_caching": typed[f"{name}_prefix_caching"] == "on",
        }

    return CompareRequest(
        workload=str(typed["workload"]),
        seed=int(typed["seed"] or 0),
        a=side("a"),
        b=side("b"),
        sizes={key: int(typed[key] or 1) for key in SIZES},
        targets=Targets(float(typed["ttft_ms"] or 1000) / 1000, float(typed["itl_ms"] or 100) / 1000),
        on_real_model=typed["where"] == "real",
    )
