"""The lessons on the page: a list, a text, an experiment, a challenge.

Owns the components and their wiring. Never knows what a lesson teaches (`viz.lessons.scheduling`, `.memory`). One set
of components shows whichever lesson is chosen, so that ten lessons cost a page no more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from engine.serving.load import LoadBusy, LoadRunner
from engine.serving.workload import WorkloadError, generate
from engine.telemetry.record import StepRecord
from viz import panels
from viz.chat import REFUSALS, in_words
from viz.controls import POLICIES, SELECTIONS
from viz.lessons import LESSONS
from viz.lessons.lesson import Attempt, Lesson, Records, attempt, experiment, knob_values
from viz.options import LONG, QUICK

NUMBER_KNOBS = {
    "max_num_seqs": "Slots",
    "max_num_batched_tokens": "Tokens a step",
    "num_blocks": "Blocks",
    "block_size": "Tokens a block",
    "answers": "Answers × as long",
    "asked": "Asked × as much",
}
KNOBS = ("policy", "decode_selection", "prefix_caching", *NUMBER_KNOBS)


class Lessons:
    """The handlers. `add_run` keeps a run's records for the panels and gives an id for them."""

    def __init__(self, service: Any, runner: LoadRunner | None) -> None:
        self._service = service
        self._runner = runner
        self.add_run: Callable[[Sequence[StepRecord]], str] | None = None

    def choose(self, title: str) -> list[Any]:
        """Updates that show another lesson: texts, empty pictures, knobs, buttons, and where the live engine stands."""
        lesson = find(title)
        values = knob_values(lesson)
        knobs = [gr.update(visible=name in values, **_value(values, name)) for name in KNOBS]
        can_check = gr.update(visible=lesson.challenge.works_live)
        return [
            text_of(lesson),
            challenge_of(lesson),
            reading_of(lesson),
            {"runs": []},
            "",
            can_check,
            self.mark(),
            *knobs,
        ]

    def run(self, title: str) -> dict[str, Any]:
        """The experiment's pictures."""
        return self._pictures(experiment(find(title)))

    def try_it(self, title: str, *knobs: Any) -> tuple[str, Any]:
        """The verdict on an attempt, and its pictures."""
        lesson = find(title)
        turned = {name: _typed(name, value) for name, value in zip(KNOBS, knobs, strict=True) if value is not None}
        try:
            made, runs = attempt(lesson, turned)
        except (*REFUSALS, WorkloadError) as error:
            return f"⚠ {in_words(error)}", gr.skip()
        return _shown(lesson, made), self._pictures(runs)

    def send(self, title: str) -> None:
        """Send the experiment's requests to the live engine, under whatever settings it has."""
        try:
            if self._runner is None:
                raise WorkloadError("there is no engine behind this page; it shows a recorded run")
            self._runner.start(generate(find(title).workload), f"lesson {title}")
        except (*REFUSALS, LoadBusy, WorkloadError) as error:
            raise gr.Error(in_words(error), print_exception=False, title="Not started") from error

    def check_live(self, title: str, mark: str) -> str:
        """The verdict on what the live engine has done since the lesson was opened."""
        epoch, _, step = mark.partition(":")
        since = int(step) if step.isascii() and step.isdigit() and len(step) < 16 else None
        records = self._service.steps(since, epoch or None).records
        if not records:
            return "Not yet: the live engine has done nothing since you opened this lesson"
        return _shown(find(title), Attempt(records))

    def mark(self) -> str:
        """Where the live engine stands now."""
        state = self._service.state()
        return f"{state['epoch']}:{state['step']}"

    def _pictures(self, runs: Sequence[tuple[str, Records]]) -> dict[str, Any]:
        if self.add_run is None:
            return {"runs": []}
        return {"runs": [{"id": self.add_run(records), "label": label} for label, records in runs]}


def build(service: Any, runner: LoadRunner | None) -> Lessons:
    """Lay out and wire the tab; call inside a `gr.Tab`. The page sets `add_run` of what it returns."""
    lessons = Lessons(service, runner)
    first = LESSONS[0]
    values = knob_values(first)
    with gr.Row(elem_id="lessons"):
        with gr.Column(scale=2, min_width=250):
            chosen = gr.Radio(
                [lesson.title for lesson in LESSONS], value=first.title, label="Lessons", elem_id="lesson-list"
            )
        with gr.Column(scale=9, min_width=330):
            text = gr.Markdown(text_of(first), elem_id="lesson-text")
            with gr.Row():
                run = gr.Button("Run the experiment", variant="primary", min_width=170, elem_id="lesson-run")
                send = gr.Button(
                    "Send it to the live engine", min_width=190, visible=runner is not None, elem_id="lesson-send"
                )
            challenge = gr.Markdown(challenge_of(first), elem_id="lesson-challenge")
            with gr.Row(equal_height=True, elem_id="lesson-knobs"):
                knobs = [_knob(name, values) for name in KNOBS]
            with gr.Row():
                attempt_ = gr.Button("Try it", variant="primary", min_width=120, elem_id="lesson-try")
                check = gr.Button(
                    "Check the live engine",
                    min_width=170,
                    visible=first.challenge.works_live,
                    elem_id="lesson-check",
                )
            verdict = gr.Markdown("", elem_id="lesson-verdict")
            reading = gr.Markdown(reading_of(first), elem_id="lesson-reading")
            pictures = panels.panel_html("compare", elem_id="panels-lesson")
            mark = gr.Textbox(lessons.mark(), visible="hidden", elem_id="lesson-mark")
    shown = [text, challenge, reading, pictures, verdict, check, mark, *knobs]
    chosen.change(lessons.choose, chosen, shown, **QUICK)
    run.click(lessons.run, chosen, pictures, **QUICK)
    send.click(lessons.send, chosen, None, **LONG)
    attempt_.click(lessons.try_it, [chosen, *knobs], [verdict, pictures], **QUICK)
    check.click(lessons.check_live, [chosen, mark], verdict, **QUICK)
    return lessons


def find(title: str) -> Lesson:
    """The lesson of that title; the first one for a title that is none."""
    return next((lesson for lesson in LESSONS if lesson.title == title), LESSONS[0])


def text_of(lesson: Lesson) -> str:
    """Title, claim and what to look at."""
    look = "\n".join(f"- {words}" for words in lesson.look)
    return f"## {lesson.title}\n\n**{lesson.claim}**\n\nRun it, then look at:\n\n{look}"


def challenge_of(lesson: Lesson) -> str:
    """The task, and a hint."""
    hint = f" *{lesson.challenge.hint}*" if lesson.challenge.hint else ""
    return f"### Challenge\n\n{lesson.challenge.words}{hint}"


def reading_of(lesson: Lesson) -> str:
    """Where to read on."""
    return f"Read on: `{lesson.note}` · source `{lesson.source}` · test `{lesson.test}`"


def _knob(name: str, values: dict[str, Any]) -> Any:
    shown = {"visible": name in values, "elem_id": f"lesson-{name}", **_value(values, name)}
    if name == "policy":
        return gr.Dropdown(POLICIES, label="Batching", min_width=140, **shown)
    if name == "decode_selection":
        return gr.Dropdown(SELECTIONS, label="When more are ready than fit", min_width=200, **shown)
    if name == "prefix_caching":
        return gr.Checkbox(label="Prefix sharing", min_width=120, **shown)
    return gr.Number(label=NUMBER_KNOBS[name], precision=0, minimum=1, min_width=110, **shown)


def _value(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {"value": values[name]} if name in values else {}


def _typed(name: str, value: Any) -> Any:
    return int(value) if name in NUMBER_KNOBS and isinstance(value, (int, float)) else value


def _shown(lesson: Lesson, made: Attempt) -> str:
    verdict = lesson.challenge.check(made)
    return f"{'✅' if verdict.done else '◻'} {verdict.words}"
