"""Pause, single steps and slow motion: when the engine may take its next step.

Owns these switches and their ranges. Only the engine thread changes them; any thread may read them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from engine.scheduling.sampling_params import InvalidRequest

log = logging.getLogger(__name__)

UNWATCHED_PAUSE_S = 60.0
"""A paused engine goes on by itself when nobody has looked at it for this long."""

MAX_STEP_DELAY_S = 10.0
MAX_STEPS = 1000

NAMES = ("paused", "step", "step_delay_s")
"""What `change` takes."""


class Pacing:
    """`clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.is_paused = False
        self.step_delay_s = 0.0
        self._steps_allowed = 0  # while paused
        self._watched_s = clock()

    def check(self, changes: dict[str, Any]) -> None:
        """Raise InvalidRequest for a value out of range."""
        paused, step, delay = (changes.get(name) for name in NAMES)
        if paused is not None and not isinstance(paused, bool):
            raise InvalidRequest(f"paused must be true or false, got {paused!r}", "paused")
        if step is not None and (isinstance(step, bool) or not isinstance(step, int) or not 1 <= step <= MAX_STEPS):
            raise InvalidRequest(f"step must be a whole number from 1 to {MAX_STEPS}, got {step!r}", "step")
        is_number = isinstance(delay, (int, float)) and not isinstance(delay, bool)
        if delay is not None and not (is_number and 0 <= delay <= MAX_STEP_DELAY_S):
            raise InvalidRequest(
                f"step_delay_s must be 0 to {MAX_STEP_DELAY_S:g} seconds, got {delay!r}", "step_delay_s"
            )

    def change(self, changes: dict[str, Any]) -> None:
        """Take any of `paused`, `step` (take that many steps, and be paused) and `step_delay_s`."""
        self.check(changes)
        paused, step, delay = (changes.get(name) for name in NAMES)
        if paused is not None:
            self.is_paused, self._steps_allowed = paused, 0
            self.watch()
        if step is not None:
            self.is_paused = True
            self._steps_allowed += step
            self.watch()
        if delay is not None:
            self.step_delay_s = float(delay)

    def watch(self) -> None:
        """Somebody looks: keeps a paused engine paused."""
        self._watched_s = self.clock()

    def resume(self) -> None:
        """No pause any more, and no steps left from one."""
        self.is_paused, self._steps_allowed = False, 0

    def may_step(self) -> bool:
        """Whether the engine may take a step now. Ends a pause that nobody watches."""
        if self.is_paused and self.clock() - self._watched_s > UNWATCHED_PAUSE_S:
            log.info("Nobody has watched the paused engine for %.0f s: it goes on", UNWATCHED_PAUSE_S)
            self.resume()
        return not self.is_paused or self._steps_allowed > 0

    def stepped(self) -> None:
        """A step was taken."""
        if self.is_paused and self._steps_allowed > 0:
            self._steps_allowed -= 1
