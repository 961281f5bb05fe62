"""The scheduler: moves requests between their states and blocks between their owners, as the policy chooses.

Owns the queue, the set of requests that hold keys and values, and the cohort of a static batch. It is the one door
through which anything changes: policies only choose, layouts only do what they are told. Never knows tensors,
text, threads or the wall clock (time is an argument).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection

from engine.kv.layout import Admission, KVLayout, Shortage
from engine.scheduling.decisions import Decisions
from engine.scheduling.ending import why_finished
from engine.scheduling.plan import ScheduledRequest, StepOutput, StepPlan
from engine.scheduling.policies import POLICIES
from engine.scheduling.policy import View, Work, view_of, wake_time
from engine.scheduling.request import FinishReason, Request, State
from engine.settings import EngineSettings
from engine.telemetry.record import Event, EventKind, Wait, WaitReason


class Scheduler:
    """One step is `plan`, then `commit` with what the runner made of it (or `fail` when it raised).

    `queue` holds requests without keys and values, by arrival; `running` those with, by admission.
    """

    def __init__(self, settings: EngineSettings, kv: KVLayout) -> None:
        self.settings = settings
        self.kv = kv
        self.queue: list[Request] = []
        self.running: dict[int, Request] = {}
        self.is_draining = False
        self.num_slots = 0
        """Slots of the running static cohort, ended members included."""
        self.num_preemptions = 0
        self.num_evictions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self.wasted_slot_steps = 0
        self.decisions = Decisions()
        self._kept: list[int] = []
        """Ended members of a contiguous static cohort: their runs stay reserved until the cohort is over."""
        self._by_id: dict[int, Request] = {}
        self._num_admitted_now = 0

    # -- who is here -------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request. Whoever calls has made sure that it can run at all and that its id is new."""
        assert request.request_id not in self._by_id, f"two requests have the id {request.request_id}"
        self._by_id[request.request_id] = request
        insort(self.queue, request, key=_arrival)
        self.decisions.arrived(request)

    def abort(
        self, request_id: int, now_s: float, reason: FinishReason = FinishReason.ABORT, error: str | None = None
    ) -> Request | None:
        """End a request in whatever state it is; its blocks are free at once. None when it is not here (any more)."""
        request = self._by_id.get(request_id)
        if request is not None:
            self._finish(request, reason, now_s, error, keep_slot_memory=False)
        return request

    @property
    def unfinished(self) -> Collection[Request]:
        """All requests that wait or run."""
        return self._by_id.values()

    # -- one step ----------------------------------------------------------------------------------------------

    def plan(self, step: int, now_s: float) -> StepPlan:
        """Admit, choose, make room. The plan is empty when nothing can run now."""
        self._num_admitted_now = 0
        self._admit(now_s)
        scheduled, num_inactive_rows = self._schedule(step, now_s)
        self.decisions.pending(self.queue, self.running)
        changes = self.kv.take_changes()
        self.decisions.note_changes(changes)
        self.num_evictions += len(changes.evicted)
        return StepPlan(step, tuple(scheduled), changes.new_block_ids, changes.copies, num_inactive_rows)

    def plan_nothing(self, step: int) -> StepPlan:
        """A step in which nobody runs: for a record of what happened while the engine was paused."""
        self.decisions.waiting_default = Wait(WaitReason.PAUSED)
        self.decisions.waiting = {request_id: Wait(WaitReason.PAUSED) for request_id in self.running}
        self.decisions.pending(self.queue, self.running)
        return StepPlan(step)

    def commit(self, plan: StepPlan, output: StepOutput, now_s: float) -> list[Request]:
        """Take the runner's tokens in: append, finish, free. Returns the requests that finished."""
        finished = []
        for item in plan.scheduled:
            request = item.request
            error = output.errors.get(request.request_id)
            if error is not None:
                self._finish(request, FinishReason.ERROR, now_s, error)
                finished.append(request)
                continue
            request.num_computed_tokens = item.context_length
            self.kv.written(request)
            if item.samples:
                request.state = State.PENDING_DECODE
                self._append(request, output.sampled[request.request_id].token_id, now_s)
                reason, error = why_finished(request)
                if reason is not None:
                    self._finish(request, reason, now_s, error)
                    finished.append(request)
        self.wasted_slot_steps += plan.num_inactive_rows + sum(item.num_padding for item in plan.scheduled)
        return finished

    def fail(self, plan: StepPlan, error: str, now_s: float) -> list[Request]:
        """The runner raised: the step's requests end with an error, everybody else goes on."""
        self.decisions.events.append(Event(EventKind.FAILED, None, {"error": error}))
        requests = [item.request for item in plan.scheduled]
        for request in requests:
            self._finish(request, FinishReason.ERROR, now_s, error)
        return requests

    def next_wake_s(self, now_s: float) -> float | None:
        """When to plan again although nothing new has happened (a forming cohort); None when nothing is due."""
        if self.queue and not self.running and POLICIES[self.settings.policy].closes_batch and not self.is_draining:
            return max(now_s, wake_time(self._view(now_s)))
        return None

    # -- settings ----------------------------------------------------------------------------------------------

    def change_settings(self, settings: EngineSettings) -> None:
        """Take settings that need no empty pool, at once. See also `fit_queue`."""
        if POLICIES[settings.policy].closes_batch and not POLICIES[self.settings.policy].closes_batch:
            self.num_slots = len(self.running)
        if not POLICIES[settings.policy].closes_batch:
            self._release_kept()
        self.settings = settings

    def change_pool(self, settings: EngineSettings, kv: KVLayout, now_s: float) -> None:
        """Take a new, empty pool. Nothing may run."""
        assert not self.running, "the pool must be drained first"
        self._release_kept()
        self.change_settings(settings)
        self.kv.forget_prefixes()
        self.decisions.note_changes(self.kv.take_changes())
        self.kv = kv
        self.fit_queue(now_s)

    def fit_queue(self, now_s: float) -> None:
        """Cut the answers of all that wait to the context limit as it is now; end those that can no longer run."""
        limit = self.settings.context_limit
        for request in list(self.queue):
            if request.num_tokens < limit:
                request.max_tokens = min(request.max_tokens, limit - request.num_prompt_tokens)
            elif request.output_token_ids:  # preempted, and the answer so far is all that fits now
                self._finish(request, FinishReason.LENGTH, now_s)
            else:
                words = (
                    f"the prompt has {request.num_prompt_tokens} tokens, but since the settings were changed a request "
                    f"may have at most {limit} with its answer; shorten it or raise num_blocks"
                )
                self._finish(request, FinishReason.ERROR, now_s, words)

    # -- coming in ---------------------------------------------------------------------------------------------

    def _view(self, now_s: float) -> View:
        return view_of(now_s, self.settings, self.running.values(), self.queue, self.num_slots, self._num_admitted_now)

    def _admit(self, now_s: float) -> None:
        """First come, first served: take in from the head of the queue until the policy or the memory says no."""
        if self.is_draining:
            self.decisions.waiting_default = Wait(WaitReason.DRAINING)
            return
        policy = POLICIES[self.settings.policy]
        view = self._view(now_s)
        promised = sum(map(self._num_blocks_promised, self.running.values())) if self.queue else 0
        position = 0  # of the head; siblings whose prompt is still being computed are passed over
        while position < len(self.queue):
            request = self.queue[position]
            if not policy.closes_batch and self._waits_for_sibling(request):
                self.decisions.waiting[request.request_id] = Wait(WaitReason.SIBLING, behind=request.sibling_of)
                position += 1
                continue
            held_back = policy.holds_back(view)
            if held_back is not None:
                self.decisions.waiting_default = Wait(held_back)
                return
            admission = self._get_table(request, promised)
            if isinstance(admission, Shortage):
                self.decisions.short_of_blocks(request.request_id, admission)
                self.decisions.waiting_default = Wait(WaitReason.BEHIND, behind=request.request_id)
                return
            del self.queue[position]
            self._take_in(request, admission, now_s)
            promised += self._num_blocks_promised(request)
            view = view.after_admission(request, self.queue)

    def _num_blocks_promised(self, request: Request) -> int:
        """Blocks to leave for one that runs: all that its tokens so far still need, and one to grow into. Whoever
        came in on those would be preempted, or hold a slot without being able to run."""
        return max(1, self.kv.num_missing_blocks(request))

    def _waits_for_sibling(self, request: Request) -> bool:
        if request.sibling_of is None or not self.kv.can_share:
            return False
        sibling = self._by_id.get(request.sibling_of)
        return sibling is not None and not sibling.output_token_ids

    def _get_table(self, request: Request, promised: int) -> Admission | Shortage:
        sibling = self._by_id.get(request.sibling_of) if request.sibling_of is not None else None
        if sibling is not None and not request.output_token_ids:
            forked = self.kv.fork(request, sibling, promised)
            if forked is not None:
                return forked
        return self.kv.admit(request, promised)

    def _take_in(self, request: Request, admission: Admission, now_s: float) -> None:
        request.num_computed_tokens = admission.num_cached_tokens
        if request.first_scheduled_s is None:
            request.first_scheduled_s = now_s
        if request.num_preemptions == 0:
            request.num_cached_tokens = admission.num_cached_tokens
            self.prefix_query_tokens += request.num_prompt_tokens
            self.prefix_hit_tokens += admission.num_cached_tokens
        if not self.running:
            self.num_slots = 0
        self.running[request.request_id] = request
        self.num_slots = max(self.num_slots, len(self.running))
        self._num_admitted_now += 1
        self.decisions.admitted(request, admission, now_s)

    # -- running -----------------------------------------------------------------------------------------------

    def _schedule(self, step: int, now_s: float) -> tuple[list[ScheduledRequest], int]:
        """Carry out the policy's choice. What can get no block is taken out of the view and the policy asked again,
        so that a step is never empty while somebody could use it."""
        policy = POLICIES[self.settings.policy]
        stalled: set[int] = set()
        while True:
            choice = policy.choose(self._view(now_s).without(stalled))
            scheduled, stalled_now = self._place(choice.work, step)
            stalled |= stalled_now
            if scheduled or not stalled_now:
                break
        active = {item.request_id for item in scheduled}
        for request_id, request in self.running.items():
            if request_id not in active and request_id not in self.decisions.waiting:
                is_decode = request.state is State.PENDING_DECODE
                self.decisions.waiting[request_id] = Wait(choice.idle_decode if is_decode else choice.idle_prefill)
        return scheduled, choice.num_inactive_rows if scheduled else 0

    def _place(self, work: tuple[Work, ...], step: int) -> tuple[list[ScheduledRequest], set[int]]:
        """Make room for each piece of work, those that arrived first first, preempting later arrivals where needed.

        Returns what runs, and the ids of those that found no room.
        """
        scheduled, stalled = [], set()
        for item in sorted(work, key=lambda item: item.request.request_id):
            request = item.request
            if request.request_id not in self.running:
                continue  # preempted a moment ago, for one that arrived before it
            shortage = self._make_room(request, item.num_tokens)
            if shortage is not None:
                self.decisions.short_of_blocks(request.request_id, shortage)
                stalled.add(request.request_id)
                continue
            start = request.num_computed_tokens
            request.last_scheduled_step = step
            scheduled.append(
                ScheduledRequest(
                    request=request,
                    token_ids=request.tokens(start, start + item.num_tokens),
                    start=start,
                    block_ids=self.kv.table(request.request_id),
                    samples=item.num_tokens > 0 and start + item.num_tokens == request.num_tokens,
                    is_decode=request.state is State.PENDING_DECODE,
                    num_padding=item.num_padding,
                )
            )
        return scheduled, stalled

    def _make_room(self, request: Request, num_tokens: int) -> Shortage | None:
        """Extend the block table; preempt the latest arrival as long as that is later than this request.

        A request never preempts an earlier one, nor itself: it waits, holding what it has. The earliest of all can
        always make room, so that somebody always gets on.
        """
        while (shortage := self.kv.extend(request, num_tokens)) is not None:
            victim = max(self.running.values(), key=_arrival)
            if victim.request_id <= request.request_id:
                return shortage
            self._preempt(victim, request)
        return None

    def _preempt(self, victim: Request, beneficiary: Request) -> None:
        """Give all of the victim's blocks back; it keeps its answer so far and computes the rest again later."""
        available, lost_tokens = self.kv.num_available_blocks, victim.num_computed_tokens
        freed = self.kv.release(victim.request_id)
        del self.running[victim.request_id]
        victim.state = State.PENDING_PREFILL
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        insort(self.queue, victim, key=_arrival)
        self.decisions.preempted(victim, beneficiary, lost_tokens, freed, available)

    # -- ending ------------------------------------------------------------------------------------------------

    def _append(self, request: Request, token_id: int, now_s: float) -> None:
        request.output_token_ids.append(token_id)
        request.last_token_s = now_s
        if request.first_token_s is None:
            request.first_token_s = now_s
            self.decisions.first_token(request, now_s)

    def _finish(
        self,
        request: Request,
        reason: FinishReason,
        now_s: float,
        error: str | None = None,
        keep_slot_memory: bool = True,
    ) -> None:
        request_id = request.request_id
        request.state = State.FINISHED
        request.finish_reason = reason
        request.finished_s = now_s
        request.error = error
        del self._by_id[request_id]
        if request_id in self.running:
            del self.running[request_id]
            is_cohort = POLICIES[self.settings.policy].closes_batch and self.kv.name == "contiguous"
            if is_cohort and keep_slot_memory:
                self._kept.append(request_id)
            else:
                self.kv.release(request_id)
        else:
            self.queue.remove(request)
        if not self.running:
            self._release_kept()
        self.decisions.finished(request)

    def _release_kept(self) -> None:
        for request_id in self._kept:
            self.kv.release(request_id)
        self._kept.clear()


def _arrival(request: Request) -> int:
    return request.request_id
