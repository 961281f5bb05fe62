"""One step of the engine, in one sentence: plan, run, commit, record.

Owns the order of these four and what happens when the third party among them, the runner, fails. Never knows
threads, streams, text or tensors. The loop itself is Orca's iteration-level scheduling (Yu et al., OSDI 2022).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from engine.kv.contiguous import ContiguousLayout
from engine.kv.layout import KVLayout
from engine.kv.paged import PagedLayout
from engine.runner import Runner
from engine.scheduling import invariants
from engine.scheduling.decisions import Decisions, build_record
from engine.scheduling.plan import StepOutput, StepPlan
from engine.scheduling.request import FinishReason, Request
from engine.scheduling.sampling_params import InvalidRequest
from engine.scheduling.scheduler import Scheduler
from engine.settings import NEEDS_EMPTY_POOL, EngineSettings
from engine.telemetry.journal import Journal
from engine.telemetry.record import Event, EventKind, StepRecord, StepTimes


def make_layout(settings: EngineSettings) -> KVLayout:
    """The empty KV layout that the settings ask for."""
    if settings.kv_layout == "paged":
        return PagedLayout(settings.num_blocks, settings.block_size, settings.prefix_caching)
    return ContiguousLayout(settings.num_blocks, settings.block_size)


class Engine:
    """Serves requests step by step on one thread. `clock` is monotonic seconds; tests hand in their own.

    After `step` returned a record, `last_output` and `last_finished` say which tokens it made and who ended.
    """

    def __init__(
        self,
        runner: Runner,
        settings: EngineSettings,
        clock: Callable[[], float] = time.monotonic,
        check_invariants: bool = False,
    ) -> None:
        self.runner = runner
        self.settings = settings
        self.clock = clock
        self.check_invariants = check_invariants
        self.scheduler = Scheduler(settings, make_layout(settings))
        self.pending_settings: EngineSettings | None = None
        """Settings that wait for an empty pool; nobody is admitted meanwhile."""
        self.num_steps = 0
        self.last_plan = StepPlan(0)
        self.last_output = StepOutput({})
        self.last_finished: list[Request] = []
        self.last_error: Exception | None = None
        """What the runner raised last, for the log; never shown to the people whose step it was."""
        self.publish_s = 0.0
        self._start_s = clock()
        self.journal = Journal(self._start_s, asdict(settings))
        """What came from outside, so that a trace of the records can be replayed."""
        runner.reset_pool(settings.num_blocks, settings.block_size)

    # -- requests ----------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. Raises InvalidRequest when it could never run."""
        self.check_fits(request.num_prompt_tokens)
        request.max_tokens = min(request.max_tokens, self.context_limit - request.num_prompt_tokens)
        self.scheduler.add(request)
        self.journal.arrived(request)

    @property
    def context_limit(self) -> int:
        """The most tokens (prompt + answer) of a request that arrives now: it runs under the settings to come."""
        return (self.pending_settings or self.settings).context_limit

    def check_fits(self, num_prompt_tokens: int) -> None:
        """Raise InvalidRequest when a prompt of this length could never run."""
        settings = self.pending_settings or self.settings
        if num_prompt_tokens < 1:
            raise InvalidRequest("the prompt is empty; send at least one token", "prompt")
        if num_prompt_tokens >= settings.context_limit:
            pool = settings.num_blocks * settings.block_size
            why = "the model's context" if settings.max_model_len <= pool else "what the KV pool can hold"
            raise InvalidRequest(
                f"the prompt has {num_prompt_tokens} tokens, but prompt and answer together may have at most "
                f"{settings.context_limit} ({why}); shorten the prompt to {settings.context_limit - 1} tokens or less",
                "prompt",
            )

    def abort(
        self, request_id: int, reason: FinishReason = FinishReason.ABORT, error: str | None = None
    ) -> Request | None:
        """End a request now; its blocks are free at once. None when there is no such request (any more)."""
        request = self.scheduler.abort(request_id, self.clock(), reason, error)
        if request is not None:
            self.journal.aborted(request_id, str(reason))
        return request

    # -- steps -------------------------------------------------------------------------------------------------

    def step(self) -> StepRecord | None:
        """Plan, run, commit, record. None when nothing could run and nothing has happened since the last record."""
        started = time.perf_counter()
        now_s = self.clock()
        self.last_output, self.last_finished = StepOutput({}), []
        self._reshape_when_drained(now_s)
        plan = self.last_plan = self.scheduler.plan(self.num_steps + 1, now_s)
        planned = time.perf_counter()
        if not plan.scheduled and not self.scheduler.decisions.events:
            self.scheduler.decisions = Decisions()
            return None
        if plan.scheduled:
            self._run(plan)
        ran = time.perf_counter()
        return self._record(plan, now_s, started, planned, ran)

    def _run(self, plan: StepPlan) -> None:
        try:
            output = self.runner.run(plan)
        except Exception as error:  # whatever it was, it was this step's; the engine goes on
            words = f"the engine could not compute this step ({type(error).__name__}); the request can be sent again"
            self.last_finished = self.scheduler.fail(plan, words, self.clock())
            self.last_error = error
        else:
            self.last_output = output
            self.last_finished = self.scheduler.commit(plan, output, self.clock())

    def record_news(self) -> StepRecord | None:
        """A record of what happened since the last one without running anything (the engine is paused, say).

        None when nothing did. It counts as a step, so that records are numbered without gaps. A pool that has been
        drained takes its new shape here too.
        """
        now_s, started = self.clock(), time.perf_counter()
        self._reshape_when_drained(now_s)
        if not self.scheduler.decisions.events:
            return None
        self.last_output, self.last_finished = StepOutput({}), []
        plan = self.last_plan = self.scheduler.plan_nothing(self.num_steps + 1)
        return self._record(plan, now_s, started, started, time.perf_counter())

    def _record(self, plan: StepPlan, now_s: float, started: float, planned: float, ran: float) -> StepRecord:
        if self.check_invariants:
            invariants.check(self.scheduler)
        output = self.last_output
        runner_s = output.batch_s + output.forward_s + output.sample_s
        times = StepTimes(
            schedule_s=planned - started,
            batch_s=output.batch_s,
            forward_s=output.forward_s,
            sample_s=output.sample_s,
            commit_s=max(0.0, ran - planned - runner_s),
            publish_s=self.publish_s,
        )
        self.num_steps = plan.step
        record = build_record(self.scheduler, plan, now_s - self._start_s, self.clock() - now_s, times)
        self.journal.stepped(record, output.sampled)
        return record

    def next_wake_s(self) -> float | None:
        """When to call `step` again although nothing new has happened; None when nothing is due."""
        return self.scheduler.next_wake_s(self.clock())

    @property
    def can_work(self) -> bool:
        """Whether any request waits or runs, or settings wait for the pool."""
        return bool(self.scheduler.unfinished) or self.pending_settings is not None

    # -- settings ----------------------------------------------------------------------------------------------

    def change(self, changes: dict[str, Any]) -> None:
        """Change settings by name. What shapes the pool takes effect once it is drained; the rest at once.

        Raises InvalidRequest for a value or a combination that cannot be; then nothing has changed.
        """
        wanted = (self.pending_settings or self.settings).changed(changes)
        reshapes = any(getattr(wanted, name) != getattr(self.settings, name) for name in NEEDS_EMPTY_POOL)
        if reshapes and self.scheduler.running:
            shape = {name: getattr(self.settings, name) for name in NEEDS_EMPTY_POOL}
            self._take_settings(wanted.changed(shape))
            self.pending_settings = wanted
            self.scheduler.is_draining = True
            self._note(EventKind.DRAINING, wanted)
        elif reshapes:
            try:
                self._reshape_pool(wanted, self.clock())
            except MemoryError as error:
                raise InvalidRequest(str(error), "num_blocks") from error
        else:
            self._stop_draining()
            self._take_settings(wanted)
            self.scheduler.fit_queue(self.clock())
            self._note(EventKind.SETTINGS, wanted)
        self.journal.changed(changes)

    def _take_settings(self, settings: EngineSettings) -> None:
        kv = self.scheduler.kv
        if isinstance(kv, PagedLayout) and settings.prefix_caching != self.settings.prefix_caching:
            kv.set_prefix_caching(settings.prefix_caching)
        self.settings = settings
        self.scheduler.change_settings(settings)

    def _reshape_when_drained(self, now_s: float) -> None:
        if self.pending_settings is None or self.scheduler.running:
            return
        try:
            self._reshape_pool(self.pending_settings, now_s)
        except MemoryError as error:  # nobody waits for an answer to the change any more: the old pool stays
            self._stop_draining()
            self.scheduler.fit_queue(now_s)
            self._note(EventKind.SETTINGS, self.settings, error=str(error))

    def _reshape_pool(self, settings: EngineSettings, now_s: float) -> None:
        self.runner.reset_pool(settings.num_blocks, settings.block_size)
        self._stop_draining()
        self.settings = settings
        self.scheduler.change_pool(settings, make_layout(settings), now_s)
        self._note(EventKind.SETTINGS, settings)

    def _stop_draining(self) -> None:
        self.pending_settings = None
        self.scheduler.is_draining = False

    def _note(self, kind: EventKind, settings: EngineSettings, **more: Any) -> None:
        names = ("policy", "decode_selection", "kv_layout", "prefix_caching", *sorted(NEEDS_EMPTY_POOL - {"kv_layout"}))
        names = (*names, "max_num_seqs", "max_num_batched_tokens")
        values = {name: getattr(settings, name) for name in names}
        self.scheduler.decisions.events.append(Event(kind, None, values | more))
