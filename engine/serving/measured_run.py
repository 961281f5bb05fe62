"""A workload on the real engine, measured: settings taken, the pool empty, the requests sent, the records kept.

Owns the order of these. Never knows what is compared with what, or who watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engine.serving.load import LoadProgress, LoadRunner
from engine.serving.workload import Workload
from engine.telemetry.cut import cut
from engine.telemetry.record import StepRecord

if TYPE_CHECKING:
    from engine.serving.service import EngineService

POLL_S = 0.2
DRAIN_TIMEOUT_S = 120.0


@dataclass(slots=True)
class MeasuredRun:
    """A run while it is measured; `records` is complete once `measure` has ended."""

    records: tuple[StepRecord, ...] = ()
    _before: StepRecord | None = None
    _raw: list[StepRecord] = field(default_factory=list)

    def collect(self, service: EngineService) -> None:
        """Take over what the ring has that is new; called often enough, nothing falls out of the ring before."""
        since = self._raw[-1].step if self._raw else (self._before.step if self._before else 0)
        self._raw.extend(record for record in service.steps(since=since).records if record.step > since)


async def measure(
    service: EngineService, runner: LoadRunner, workload: Workload, settings: Mapping[str, Any], run: MeasuredRun
) -> AsyncIterator[LoadProgress]:
    """Run `workload` under `settings` (names of `EngineService.control`) into `run`; yields the progress meanwhile.

    Starts from an empty prefix cache, at full pace. Requests of other people that come meanwhile are part of the run.
    Closing this generator early stops the workload. Raises TimeoutError when what runs now does not end in time, and
    what `control` raises.
    """
    wanted = dict(settings)
    await _control(service, wanted | {"prefix_caching": False, "paused": False, "step_delay_s": 0.0})
    await _drained(service)
    await _control(service, {"prefix_caching": bool(wanted.get("prefix_caching", True))})
    newest = service.steps(limit=None).records[-1:]
    run._before = newest[0] if newest else None
    runner.start(workload, "comparison")
    try:
        while runner.progress().is_running:
            run.collect(service)
            yield runner.progress()
            await asyncio.sleep(POLL_S)
        run.collect(service)
        run.records = cut(run._raw, run._before, runner.request_numbers)
        yield runner.progress()
    finally:
        runner.stop()


async def _control(service: EngineService, changes: Mapping[str, Any]) -> None:
    """Not in the event loop: it waits for the step that runs, and answers stream meanwhile."""
    await asyncio.to_thread(service.control, changes)


async def _drained(service: EngineService) -> None:
    waited = 0.0
    while True:
        state = service.state()
        if not state["draining"] and not state["pending_decode"] and not state["pending_prefill"]:
            return
        if waited > DRAIN_TIMEOUT_S:
            raise TimeoutError(
                f"the engine was still busy after {DRAIN_TIMEOUT_S:.0f} s; compare when nobody else asks anything"
            )
        await asyncio.sleep(POLL_S)
        waited += POLL_S
