"""Workloads on the page: presets, a generator to set by hand, a production trace from a file, start and stop.

Owns these components and what they make of a person's numbers. Never knows how requests are sent (`engine.serving`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import gradio as gr

from engine.serving.load import LoadBusy, LoadRunner
from engine.serving.trace_csv import TraceError, read_trace
from engine.serving.workload import Arrivals, LengthClass, Workload, WorkloadError, WorkloadSpec, generate
from viz.chat import REFUSALS, in_words
from viz.options import LONG, QUICK
from viz.presets import PRESETS, Preset
from viz.scripts import mount_script

MAX_REQUESTS = 2_000
ARRIVALS = [
    ("all at once", "at_once"),
    ("independent people (Poisson)", "poisson"),
    ("bursts", "burst"),
    ("users who ask again when answered", "closed"),
]


class LoadPanel:
    """The handlers, bound to the one load runner of this server."""

    def __init__(self, service: Any, runner: LoadRunner, locked: bool) -> None:
        self._service = service
        self._runner = runner
        self._locked = locked

    def progress(self) -> dict[str, Any]:
        """The newest run, as numbers, for the state that pages ask for."""
        return asdict(self._runner.progress())

    def run_preset(self, preset: Preset) -> None:
        """Make the changes that the preset asks for, where allowed, and send its workload."""
        try:
            if not self._locked and (changes := preset.settings(self._service.state())):
                self._service.control(changes)
            self._start(generate(preset.spec(self._service.state())), preset.title)
        except (*REFUSALS, LoadBusy) as error:
            raise gr.Error(in_words(error), print_exception=False, title="Not started") from error

    def run_own(self, numbers: Mapping[str, Any]) -> None:
        """Send the workload that a person set by hand."""
        try:
            state = self._service.state()
            self._start(generate(_spec(numbers, state["max_model_len"])), "your workload")
        except (*REFUSALS, LoadBusy) as error:
            raise gr.Error(in_words(error), print_exception=False, title="Not started") from error

    def run_trace(self, path: str | None, count: Any, speed: Any) -> None:
        """Send the first `count` requests of a trace file, `speed` times as fast as they came."""
        try:
            if not path:
                raise TraceError("choose a trace file first: a CSV with TIMESTAMP,ContextTokens,GeneratedTokens")
            count = min(int(count or 100), MAX_REQUESTS)
            rows = read_trace(path, max_rows=count)
            spec = WorkloadSpec(
                num_requests=len(rows),
                arrivals=Arrivals.TRACE,
                trace=rows,
                trace_speed=float(speed or 1.0),
                max_total_tokens=self._service.state()["max_model_len"],
            )
            workload = generate(spec)
        except ValueError as error:
            raise gr.Error(in_words(error), print_exception=False, title="Trace not used") from error
        except OSError as error:  # its words would name a path of the server
            words = "the file is not there any more; choose it again"
            raise gr.Error(words, print_exception=False, title="Trace not used") from error
        try:
            self._start(workload, "production trace")
        except LoadBusy as error:
            raise gr.Error(str(error), print_exception=False, title="Not started") from error
        if workload.num_cut:
            gr.Info(f"{workload.num_cut} of {len(workload.requests)} were cut to the context of this model.")

    def stop(self) -> None:
        """Send nothing more and abort what is under way."""
        self._runner.stop()

    def _start(self, workload: Workload, name: str) -> None:
        self._runner.start(workload, name)


def build(panel: LoadPanel) -> None:
    """Lay out the tab; call inside a `gr.Tab`."""
    gr.HTML(
        value={},
        html_template='<div class="pg-load"></div>',
        js_on_load=mount_script("load.js", "mountLoad", ".pg-load", events=("halt",)),
        apply_default_css=False,
        elem_id="load-progress",
    ).halt(panel.stop, None, None, **QUICK)
    with gr.Column(elem_id="presets"):
        for preset in PRESETS:
            button = gr.Button(
                f"{preset.title}\n{preset.story}", elem_classes="preset", elem_id=f"preset-{preset.name}"
            )
            button.click(lambda chosen=preset: panel.run_preset(chosen), None, None, **LONG)
    with gr.Accordion("A production trace (Azure's format)", open=False):
        gr.Markdown(
            "A CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`, at most 4 MB. "
            "Only arrival times and lengths are used; the file is deleted within the hour."
        )
        trace = gr.File(label="Trace", file_types=[".csv"], height=150)
        with gr.Row(equal_height=True):
            count = gr.Number(100, precision=0, minimum=1, maximum=MAX_REQUESTS, label="Requests", min_width=90)
            speed = gr.Number(1, minimum=0.1, maximum=1000, label="Times as fast", min_width=90)
            gr.Button("Replay", min_width=90, elem_id="replay-trace").click(
                panel.run_trace, [trace, count, speed], None, **LONG
            )
    with gr.Accordion("Your own workload", open=False, elem_id="own-workload"):
        _own(panel)


def _own(panel: LoadPanel) -> None:
    arrivals = gr.Dropdown(ARRIVALS, value="poisson", label="Arrivals")
    with gr.Row():
        count = _number("Requests", 32)
        rate = _number("Arrivals a second (Poisson)", 2, precision=2)
        users = _number("Users, or burst size", 6)
        pause = _number("Seconds between", 2, precision=2, minimum=0)
    with gr.Row():
        prompt_low = _number("Prompt tokens from", 16)
        prompt_high = _number("to", 96)
        output_low = _number("Answer tokens from", 16)
        output_high = _number("to", 64)
    with gr.Row():
        share = gr.Slider(0, 1, value=0.5, step=0.05, label="Share with a common beginning", min_width=150)
        shared = _number("Its tokens", 64, minimum=0)
        seed = _number("Seed", 0, minimum=0)
    inputs = {
        "arrivals": arrivals,
        "num_requests": count,
        "rate_per_s": rate,
        "users": users,
        "pause_s": pause,
        "prompt_low": prompt_low,
        "prompt_high": prompt_high,
        "output_low": output_low,
        "output_high": output_high,
        "share": share,
        "shared_tokens": shared,
        "seed": seed,
    }

    def run(*numbers: Any) -> None:
        panel.run_own(dict(zip(inputs, numbers, strict=True)))

    gr.Button("Start", variant="primary", size="sm", elem_id="own-start").click(
        run, list(inputs.values()), None, **LONG
    )


def _number(label: str, value: float, precision: int = 0, minimum: float = 1) -> gr.Number:
    return gr.Number(value, label=label, precision=precision, minimum=minimum, min_width=90)


def _spec(numbers: Mapping[str, Any], max_total_tokens: int) -> WorkloadSpec:
    missing = [name for name, value in numbers.items() if value is None]
    if missing:
        raise WorkloadError(f"a number is missing: {', '.join(missing).replace('_', ' ')}")
    count = int(numbers["num_requests"])
    if count > MAX_REQUESTS:
        raise WorkloadError(f"the page sends at most {MAX_REQUESTS} requests in one go, got {count}")
    return WorkloadSpec(
        num_requests=count,
        arrivals=Arrivals(numbers["arrivals"]),
        rate_per_s=float(numbers["rate_per_s"]),
        burst_size=int(numbers["users"]),
        burst_gap_s=float(numbers["pause_s"]),
        num_users=int(numbers["users"]),
        think_s=float(numbers["pause_s"]),
        mix=(
            LengthClass(
                prompt_tokens=(int(numbers["prompt_low"]), int(numbers["prompt_high"])),
                output_tokens=(int(numbers["output_low"]), int(numbers["output_high"])),
            ),
        ),
        shared_prefix_share=float(numbers["share"]),
        shared_prefix_tokens=int(numbers["shared_tokens"]),
        max_total_tokens=max_total_tokens,
        seed=int(numbers["seed"]),
    )
