"""Plays a trace: what has been shown so far, where the playing stands, how fast it goes.

Owns the position in recorded time and the ring that it fills. No thread: whoever looks calls `play`, which moves on by
the time that has passed. Never knows who looks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from engine.telemetry.journal import Journal
from engine.telemetry.record import EventKind, StepRecord
from engine.telemetry.ring import RecordRing
from engine.telemetry.trace_file import Trace

PAUSE_AT_END_S = 6.0
LONGEST_IDLE_S = 2.0
"""Stretches in which nothing happened are cut to this."""


class TracePlayer:
    """Shows `trace` in recorded time times `speed`, over and over if it `loops`; each round is an epoch of its own.

    `is_paused`, `speed` and `step_delay_s` (0: recorded time, else one step each so many seconds) may be set at will,
    after a call of `play`. Not safe for several threads at once.
    """

    def __init__(self, trace: Trace, clock: Callable[[], float] = time.monotonic, loops: bool = True) -> None:
        self.trace = trace
        self.is_paused = False
        self.speed = 1.0
        self.step_delay_s = 0.0
        self.num_rounds = 0
        self.listeners: list[Callable[[StepRecord], None]] = []
        self._clock = clock
        self._loops = loops
        self._starts_s = _without_idle(trace.records)
        self._looked_s = clock()
        self._begin()

    def _begin(self) -> None:
        header, capacity = self.trace.header, max(1, len(self.trace.steps))
        self.num_rounds += 1
        epoch = header.epoch if self.num_rounds == 1 else f"{header.epoch}-{self.num_rounds}"
        self.ring = RecordRing(epoch, capacity, self.trace.first_map())
        self.journal = Journal(header.start_s, header.settings, capacity)
        self.settings = dict(header.settings)
        """As they are after the newest step shown."""
        self.drains_for: dict[str, Any] = {}
        """Settings that wait for an empty pool."""
        self._next = 0
        self._at_s = self._starts_s[0] if self._starts_s else 0.0
        self._delayed_s = 0.0
        self._over_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether all steps of this round have been shown."""
        return self._next == len(self._starts_s)

    def play(self) -> None:
        """Move on by the time that has passed since the last call."""
        now_s = self._clock()
        passed_s, self._looked_s = max(0.0, now_s - self._looked_s), now_s
        if self.is_paused:
            return
        if self.is_over:
            self._over_s += passed_s
            if self._loops and self._starts_s and self._over_s >= PAUSE_AT_END_S:
                self._begin()
        elif self.step_delay_s:
            self._delayed_s += passed_s
            count = int(self._delayed_s / self.step_delay_s)
            self._delayed_s -= count * self.step_delay_s
            self.show(count)
        else:
            self._at_s += passed_s * self.speed
            while not self.is_over and self._end_of(self._next) <= self._at_s:
                self._show_next()

    def show(self, count: int) -> None:
        """Show `count` more steps now, and go on from there."""
        for _ in range(min(count, len(self._starts_s) - self._next)):
            self._show_next()
        if self._next:
            self._at_s = self._end_of(self._next - 1)

    def seek(self, step: int) -> None:
        """Show everything up to `step`, and go on from there. Going back begins a new round."""
        first = self.trace.steps[0].record.step if self.trace.steps else 1
        wanted = max(0, min(step - first + 1, len(self._starts_s)))
        if wanted < self._next:
            self._begin()
        self._over_s = 0.0
        self.show(wanted - self._next)

    def _end_of(self, index: int) -> float:
        return self._starts_s[index] + self.trace.steps[index].record.duration_s

    def _show_next(self) -> None:
        step = self.trace.steps[self._next]
        self._next += 1
        for event in step.record.events:
            if event.kind is EventKind.SETTINGS:
                self.settings |= {name: value for name, value in event.details.items() if name in self.settings}
                self.drains_for = {}
            elif event.kind is EventKind.DRAINING:
                self.drains_for = dict(event.details)
        self.ring.append(step.record)
        self.journal.remember(step.entry)
        for listener in self.listeners:
            listener(step.record)


def _without_idle(records: Sequence[StepRecord]) -> list[float]:
    """When each step begins once long idle stretches are cut."""
    starts: list[float] = []
    shift, ended = 0.0, records[0].time_s if records else 0.0
    for record in records:
        shift += max(0.0, record.time_s - ended - LONGEST_IDLE_S)
        starts.append(record.time_s - shift)
        ended = record.time_s + record.duration_s
    return starts
