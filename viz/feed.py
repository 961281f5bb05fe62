"""The step feed of the page: every open page gets the same encoded steps, when it asks for them.

Owns who is listening and how often they are answered. Never knows what a page draws. A page asks ("I have steps up to
N of epoch E") and is answered once, as soon as there is news and at most `UPDATES_PER_S` times a second; so a page in
the background that does not ask costs nothing, and a slow one is never sent more than it can take. Each record is
encoded once, whoever reads it; a page that fell out of the ring starts over from the block map and is told what it
skipped. An answer is

    {"epoch", "oldest", "newest", "base": null | {…}, "skipped": null | [from, to], "state": {…}, "steps": […]}

with steps as in `viz.encoding`; `state` only when it changed.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.telemetry.record import StepRecord
from engine.telemetry.ring import BlockMap, Steps
from viz.encoding import dumps, encode_base, encode_run, encode_step

UPDATES_PER_S = 5.0
MAX_STEPS_AT_ONCE = 1000
"""So that a page that is opened late does not hold the interpreter for long."""
BYTES_PER_S = 60_000
"""What one page is sent in the long run; `BURST_BYTES` more may go at once, to fill a page that was just opened."""
BURST_BYTES = 2_000_000
MAX_RUNS = 16


class StepSource(Protocol):
    """What the feed asks of the engine service."""

    def steps(self, since: int | None = None, epoch: str | None = None, limit: int | None = None) -> Steps:
        """Records newer than `since` (see `engine.telemetry.ring`)."""

    def state(self) -> Mapping[str, Any]:
        """The newest snapshot, as `/engine/state` shows it."""

    def watch(self) -> None:
        """Told whenever a page asks, so that an engine that somebody paused stays paused while somebody looks."""


_STATE_KEYS_LEFT_OUT = frozenset(
    {"pending_prefill", "pending_decode", "active_decode", "active_prefill", "queue", "step"}
)


@dataclass
class Answer:
    """One encoded answer and where its reader stands afterwards."""

    text: str
    newest: int
    has_news: bool


@dataclass
class Feed:
    """Encoded steps of one engine, shared by all pages. Used from one event loop only."""

    source: StepSource
    _epoch: str = ""
    _encoded: OrderedDict[int, str] = field(default_factory=OrderedDict)
    _map: BlockMap = field(default_factory=BlockMap)
    _last: StepRecord | None = None
    _oldest: int = 1
    _runs: OrderedDict[str, str] = field(default_factory=OrderedDict)
    num_encoded: int = 0
    """Records encoded since the start; a test holds that it does not grow with the number of pages."""

    def pump(self) -> int:
        """Encode what is new since the last call, a bounded part of it at a time; returns the newest encoded step."""
        last = self._last
        news = self.source.steps(since=last.step if last else None, epoch=self._epoch or None, limit=MAX_STEPS_AT_ONCE)
        if news.epoch != self._epoch or news.base is not None:
            self._encoded.clear()
            self._last = None
            self._epoch = news.epoch
            self._map = news.base.copy() if news.base else BlockMap()
        self._oldest = news.oldest
        for record in news.records:
            self._encoded[record.step] = dumps(encode_step(record, self._last, self._map))
            self._map.apply(record)
            self._last = record
            self.num_encoded += 1
        while self._encoded and next(iter(self._encoded)) < self._oldest:
            self._encoded.popitem(last=False)
        return self._last.step if self._last else news.newest

    def answer(self, since: int | None, epoch: str | None, state_seen: str | None = None) -> tuple[Answer, str]:
        """What a page that has steps up to `since` of `epoch` is to be told, and the state's text as it is now.

        Pass that text back as `state_seen` next time, and the state is sent only when it changed.
        """
        self.source.watch()
        newest = self.pump()
        state = dumps(_page_state(self.source.state()))
        skipped, base = None, "null"
        fits = since is not None and epoch == self._epoch and self._oldest - 1 <= since <= newest
        if fits and since is not None:
            first = since + 1
            steps = [self._encoded[n] for n in range(first, min(newest, since + MAX_STEPS_AT_ONCE) + 1)]
        else:
            if since is not None and epoch == self._epoch and since < newest:
                skipped = [since + 1, self._oldest - 1]
            base, first, steps = self._start_over()
        text = self._text(newest, base, skipped, steps, state if state != state_seen else None)
        return Answer(text, first - 1 + len(steps), bool(steps) or not fits or state != state_seen), state

    def is_far_behind(self, since: int, epoch: str | None) -> bool:
        """Whether a page lacks more steps than one answer holds."""
        return epoch == self._epoch and self.pump() - since > MAX_STEPS_AT_ONCE

    def jump(self, since: int) -> Answer:
        """For a page that cannot keep up: the state just after the newest step, and what was left out."""
        newest = self.pump()
        base = dumps(encode_base(self._map, self._last))
        return Answer(self._text(newest, base, [since + 1, newest], [], None), newest, True)

    def add_run(self, records: Sequence[StepRecord], base: BlockMap | None = None) -> str:
        """Keep a finished run (a comparison, a trace) for `GET /ui/runs/{id}`; the oldest of many is dropped."""
        run_id = secrets.token_urlsafe(9)
        self._runs[run_id] = dumps(encode_run(records, base))
        while len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)
        return run_id

    def run(self, run_id: str) -> str | None:
        """The encoded run of that id, or None."""
        return self._runs.get(run_id)

    def _start_over(self) -> tuple[str, int, list[str]]:
        """Base, first step and steps for a page that has nothing: all that the ring still holds, from its start."""
        news = self.source.steps(since=None, limit=MAX_STEPS_AT_ONCE)
        base = news.base or BlockMap()
        first = base.step + 1 if not news.records else news.records[0].step
        steps = [self._encoded[record.step] for record in news.records[1:] if record.step in self._encoded]
        if news.records:
            steps.insert(0, dumps(encode_step(news.records[0], None, base)))
        return dumps(encode_base(base)), first, steps

    def _text(self, newest: int, base: str, skipped: list[int] | None, steps: Sequence[str], state: str | None) -> str:
        head = f'{{"epoch":{dumps(self._epoch)},"oldest":{self._oldest},"newest":{newest},"base":{base}'
        middle = f',"skipped":{dumps(skipped)}' + (f',"state":{state}' if state is not None else "")
        return f'{head}{middle},"steps":[{",".join(steps)}]}}'


def _page_state(state: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in _STATE_KEYS_LEFT_OUT and _is_setting(name)}


def _is_setting(name: str) -> bool:
    """Figures that change with every step come with the steps; the state is for what people set."""
    return not name.startswith(("num_free", "num_cached", "num_active", "num_preempt", "internal_", "external_"))
