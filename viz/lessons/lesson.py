"""What a lesson is, and its laboratory: workloads on the simulated engine under settings one may turn.

Owns the running of experiments and attempts. Never knows what a particular lesson teaches, nor how it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engine.scheduling.sampling_params import InvalidRequest
from engine.serving.simulate import simulate
from engine.serving.workload import WorkloadSpec, generate
from engine.settings import EngineSettings
from engine.telemetry.record import StepRecord

Records = Sequence[StepRecord]

LABORATORY = EngineSettings(
    num_blocks=64, block_size=16, max_num_seqs=4, max_num_batched_tokens=64, max_queue=256, cohort_wait_s=0.0
)
"""Small enough to see every block and every step."""
MAX_STEPS = 2000


@dataclass(frozen=True, slots=True)
class Side:
    """One run of an experiment: the settings in which it differs from `LABORATORY`."""

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a challenge was met, and in words with numbers what was or what is missing."""

    done: bool
    words: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a challenge is judged by: the records of one's own run, and those of the run to compare it with.

    `settings` are the attempt's; None for the live engine, whose records say which were in force.
    """

    records: Records
    reference: Records = ()
    settings: EngineSettings | None = None


@dataclass(frozen=True, slots=True)
class Challenge:
    """A task with a check. `knobs` may be turned, beginning at `start` (over the first side's settings).

    `compares`: the attempt is compared with side "a" as it stands, or with side "b" under the same knobs ("both").
    `works_live`: the check can also judge what the live engine has done.
    """

    words: str
    check: Callable[[Attempt], Verdict]
    knobs: tuple[str, ...]
    start: Mapping[str, Any] = field(default_factory=dict)
    compares: str = "a"
    works_live: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One idea: a claim, an experiment that shows it, what to look at, and a challenge.

    `workload` is the experiment's; `note`, `source` and `test` are paths in the repository.
    """

    name: str
    title: str
    claim: str
    workload: WorkloadSpec
    a: Side
    b: Side | None
    look: tuple[str, ...]
    challenge: Challenge
    note: str
    source: str
    test: str


ANSWERS = "answers"
"""A knob of the workload, not of the engine: answers become so many times as long."""
ASKED = "asked"
"""Another: people ask for so many times the tokens that their answers turn out to have."""


def run(lesson: Lesson, settings: Mapping[str, Any]) -> tuple[EngineSettings, Records]:
    """The lesson's workload on the simulated engine. `settings` may hold the workload's knobs too.

    Raises InvalidRequest for settings that cannot be, WorkloadError when it takes too long.
    """
    engine_settings = LABORATORY.changed({k: v for k, v in settings.items() if k not in (ANSWERS, ASKED)})
    spec = _turned(lesson.workload, settings)
    records = simulate(generate(spec), engine_settings, max_steps=MAX_STEPS).records
    if not records:
        raise InvalidRequest("none of the lesson's requests fits this pool; give it more blocks", "num_blocks")
    return engine_settings, records


def experiment(lesson: Lesson) -> list[tuple[str, Records]]:
    """(label, records) of the lesson's one or two runs."""
    sides = [lesson.a] if lesson.b is None else [lesson.a, lesson.b]
    return [(side.label, run(lesson, side.settings)[1]) for side in sides]


def attempt(lesson: Lesson, knobs: Mapping[str, Any]) -> tuple[Attempt, list[tuple[str, Records]]]:
    """Run the challenge with these knobs; what it is judged by, and (label, records) of both runs.

    Raises as `run` does.
    """
    challenge = lesson.challenge
    turned = {name: value for name, value in knobs.items() if name in challenge.knobs}
    begin = dict(lesson.a.settings) | dict(challenge.start)
    if challenge.compares == "both":
        assert lesson.b is not None
        _, reference = run(lesson, begin | turned)
        settings, records = run(lesson, begin | dict(lesson.b.settings) | turned)
        labels = (lesson.a.label, lesson.b.label)
    else:
        _, reference = run(lesson, lesson.a.settings)
        settings, records = run(lesson, begin | turned)
        labels = (lesson.a.label, "yours")
    return Attempt(records, reference, settings), [(labels[0], reference), (labels[1], records)]


def knob_values(lesson: Lesson) -> dict[str, Any]:
    """What the challenge's knobs show at the beginning."""
    begin = dict(lesson.a.settings) | dict(lesson.challenge.start)
    values: dict[str, Any] = {}
    for name in lesson.challenge.knobs:
        default = 1 if name in (ANSWERS, ASKED) else getattr(LABORATORY, name)
        values[name] = begin.get(name, default)
    return values


def _turned(spec: WorkloadSpec, settings: Mapping[str, Any]) -> WorkloadSpec:
    longer = settings.get(ANSWERS, 1)
    if isinstance(longer, bool) or not isinstance(longer, int) or not 1 <= longer <= 16:
        raise InvalidRequest(f"answers may become 1 to 16 times as long, not {longer!r}", ANSWERS)
    lengths = tuple((prompt, output * longer) for prompt, output in spec.lengths)
    rows = tuple(replace(row, num_output_tokens=row.num_output_tokens * longer) for row in spec.trace)
    asked = settings.get(ASKED, spec.asked_tokens_factor)
    return replace(spec, lengths=lengths, trace=rows, asked_tokens_factor=asked)
