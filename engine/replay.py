"""Runs a trace's arrivals through the scheduler once more, and compares every decision with the recorded one.

Owns the runner that answers from a script, and what counts as a decision. A trace that replays without a difference is
a run understood; one that does not is a bug report, and the first difference says where to look. Needs no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from engine.engine import Engine
from engine.scheduling.plan import SampledToken, StepOutput, StepPlan
from engine.scheduling.request import FinishReason, Request
from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock
from engine.telemetry.checked import TraceError
from engine.telemetry.journal import Abort, Arrival, Change, Input
from engine.telemetry.prefix_numbers import from_ranges
from engine.telemetry.record import EventKind, StepRecord, WaitReason
from engine.telemetry.trace_file import TraceReader
from engine.telemetry.trace_format import Header, TraceStep


class ReplayedFailure(Exception):
    """Raised by the scripted runner where the recorded one raised."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that came out otherwise: in which step, of what, and both values."""

    step: int
    what: str
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        return f"step {self.step}, {self.what}: recorded {self.recorded!r}, replayed {self.replayed!r}"


class ScriptedRunner:
    """Gives every request the token that it got in the recording, by number; fails where it failed."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._script: TraceStep | None = None
        self._ended_s = 0.0
        self._stops: frozenset[int] = frozenset()

    def follow(self, script: TraceStep, ended_s: float) -> None:
        """The next step is this one, and ended then."""
        self._script, self._ended_s = script, ended_s
        self._stops = frozenset(_finished(script.record, FinishReason.STOP))

    def rest(self) -> None:
        """What comes until the next step is no part of one."""
        self._script = None

    def is_last_token(self, request_id: int) -> bool:
        """Whether the recorded answer ended with an end-of-sequence token or a stop string in this step."""
        return request_id in self._stops

    def reset_pool(self, num_blocks: int, block_size: int) -> None:
        """Raises MemoryError where the recorded runner did after a drain (a change refused at once is no input)."""
        for event in self._script.record.events if self._script else ():
            if event.kind is EventKind.SETTINGS and "error" in event.details:
                raise MemoryError(str(event.details["error"]))

    def run(self, plan: StepPlan) -> StepOutput:
        """See `engine.runner.Runner`."""
        assert self._script is not None
        self._clock.now_s = self._ended_s
        record, tokens = self._script.record, self._script.entry.tokens
        if any(event.kind is EventKind.FAILED for event in record.events):
            raise ReplayedFailure
        sampled = {
            item.request_id: SampledToken(tokens.get(item.request_id, -1)) for item in plan.scheduled if item.samples
        }
        return StepOutput(sampled, errors=dict.fromkeys(_finished(record, FinishReason.ERROR), "as recorded"))


class Replay:
    """The engine of a trace, run again. Raises TraceError when the trace cannot have come from an engine."""

    def __init__(self, header: Header) -> None:
        self._start_s = header.start_s
        self._clock = SimulatedClock(header.start_s)
        self._runner = ScriptedRunner(self._clock)
        self.engine = Engine(self._runner, settings_of(header), self._clock)

    def step(self, recorded: TraceStep) -> StepRecord | None:
        """What the engine does now in place of the recorded step; None when it would do nothing."""
        record = recorded.record
        started_s = self._start_s + record.time_s
        self._clock.now_s = started_s
        try:
            for item in recorded.entry.inputs:
                self._take(item)
        except InvalidRequest as error:
            raise TraceError(f"before step {record.step}: the engine refuses what came in ({error})") from None
        self._runner.follow(recorded, started_s + record.duration_s)
        was_paused = record.waiting_default is not None and record.waiting_default.reason is WaitReason.PAUSED
        try:
            return self.engine.record_news() if was_paused else self.engine.step()
        finally:
            self._runner.rest()

    def _take(self, item: Input) -> None:
        if isinstance(item, Arrival):
            self.engine.add(self._request(item))
        elif isinstance(item, Abort):
            self.engine.abort(item.request_id, _reason(item))
        elif isinstance(item, Change):
            self.engine.change(dict(item.settings))

    def _request(self, arrival: Arrival) -> Request:
        return Request(
            request_id=arrival.request_id,
            prompt_token_ids=from_ranges(arrival.prompt),
            params=SamplingParams(max_tokens=None),
            max_tokens=arrival.max_tokens,
            seed=0,
            completes_stop=lambda _: self._runner.is_last_token(arrival.request_id),
            sibling_of=arrival.sibling_of,
            arrival_s=arrival.arrival_s,
        )


def replay(reader: TraceReader) -> Iterator[tuple[TraceStep, Difference | None]]:
    """Each step of a trace with the first difference in it, up to the first step that has one.

    Raises TraceError when the trace is broken or does not begin with the engine's first step.
    """
    if reader.base is not None:
        raise TraceError(
            f"the trace begins at step {reader.base.step + 1}; only one that was recorded from the start "
            "(--record FILE) can be run again, because later ones do not tell how the pool came to be as it is"
        )
    again = Replay(reader.header)
    for recorded in reader:
        difference = compare(recorded.record, again.step(recorded))
        yield recorded, difference
        if difference is not None:
            return


def compare(recorded: StepRecord, replayed: StepRecord | None) -> Difference | None:
    """The first decision that differs."""
    if replayed is None:
        return Difference(recorded.step, "whether anything runs", True, False)
    ours, theirs = decisions(recorded), decisions(replayed)
    told = ours["waiting"]
    theirs["waiting"] = {rid: _as_told(told.get(rid, {}), wait) for rid, wait in theirs["waiting"].items()}
    for name, value in ours.items():
        if value != theirs[name]:
            return Difference(recorded.step, name, value, theirs[name])
    return None


def decisions(record: StepRecord) -> dict[str, Any]:
    """A record without what is measured (times) or named at random (digests, words of errors)."""
    raw = record.to_dict()
    for name in ("time_s", "duration_s", "times"):
        del raw[name]
    raw["cached"] = [block for block, _ in record.blocks.cached]
    raw["events"] = [
        {name: value for name, value in event.items() if not name.endswith("_s") and name != "error"}
        for event in raw["events"]
    ]
    return raw


def _as_told(recorded: dict[str, Any], replayed: dict[str, Any]) -> dict[str, Any]:
    """The replayed wait without the counts that explain a shortage, where the trace is older than they are."""
    counts = {"free_blocks", "cached_blocks", "promised_blocks", "own_prefix_blocks"}
    if "free_blocks" in recorded:
        return replayed
    return {name: value for name, value in replayed.items() if name not in counts}


def settings_of(header: Header) -> EngineSettings:
    """The settings that a trace began with. Raises TraceError."""
    known = {item.name for item in fields(EngineSettings)}
    try:
        return EngineSettings(**{name: value for name, value in header.settings.items() if name in known})
    except (InvalidRequest, TypeError) as error:
        raise TraceError(f"its settings cannot be ({error})") from None


def _finished(record: StepRecord, reason: FinishReason) -> list[int]:
    return [
        event.request_id
        for event in record.events
        if event.kind is EventKind.FINISHED and event.request_id is not None and event.details.get("reason") == reason
    ]


def _reason(item: Abort) -> FinishReason:
    try:
        return FinishReason(item.reason)
    except ValueError:
        raise TraceError(f"request {item.request_id} was ended for {item.reason!r}, which is no reason") from None
