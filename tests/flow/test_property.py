"""Whatever happens, in whatever order: every step keeps the invariants, every answer is the request's own.

A state machine plays users and operators against the engine: requests with common beginnings, siblings, aborts,
switches of policy, layout and sizes, pauses, steps that raise. The books are checked after each step (`Driver`), the
answers at the end. It runs on the symbolic runner, which sees every slot, and on the RAND model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from engine.kv import prefix_index
from engine.kv.block_pool import BlockPool
from engine.kv.changes import ChangeLog
from engine.kv.paged import PagedLayout
from engine.kv.prefix_index import PrefixIndex
from engine.scheduling.request import FinishReason, Request
from engine.scheduling.sampling_params import InvalidRequest
from engine.scheduling.scheduler import Scheduler
from engine.telemetry.record import EventKind, WaitReason
from tests.engine_driver import Driver
from tests.flow import tiny_runs
from tests.symbolic_runner import answer

POLICIES = st.sampled_from(["static", "decode_first", "prefill_first", "mixed"])
LAYOUTS = st.sampled_from(["paged", "contiguous"])
SELECTIONS = st.sampled_from(["round_robin", "sticky"])
BLOCKS = st.tuples(st.sampled_from([1, 3, 4, 16]), st.sampled_from([24, 48, 80, 320])).map(
    lambda sizes: {"block_size": sizes[0], "num_blocks": sizes[1] // sizes[0]}
)
SWITCHES = st.one_of(
    st.fixed_dictionaries({"policy": POLICIES}),
    st.fixed_dictionaries({"decode_selection": SELECTIONS, "max_num_seqs": st.sampled_from([1, 2, 4, 8])}),
    st.fixed_dictionaries({"prefix_caching": st.booleans(), "max_num_batched_tokens": st.sampled_from([8, 16, 64])}),
    st.fixed_dictionaries({"kv_layout": LAYOUTS}),
    BLOCKS,
)
BEGINNINGS = [[40 + (7 * i * k + i) % 60 for i in range(40)] for k in range(3)]


class Traffic(RuleBasedStateMachine):
    """`max_requests` bounds one run. `faults` is whether steps may raise and requests may fail on their own."""

    max_requests = 25
    faults = True
    eos: tuple[int, ...] = (7,)
    fixed: ClassVar[dict[str, Any]] = {}
    """Settings that this machine neither draws nor switches."""
    seen: ClassVar[Counter[str]] = Counter()

    def make_driver(self, **settings: Any) -> Driver:
        return Driver(**settings)

    def own_answer(self, request: Request) -> list[int]:
        return answer(request.prompt_token_ids, len(request.output_token_ids), request.seed)

    @initialize(
        policy=POLICIES,
        decode_selection=SELECTIONS,
        kv_layout=LAYOUTS,
        prefix_caching=st.booleans(),
        blocks=BLOCKS,
        max_num_seqs=st.sampled_from([1, 2, 4, 8]),
        max_num_batched_tokens=st.sampled_from([8, 16, 64]),
    )
    def start(self, blocks: dict[str, int], **more: Any) -> None:
        self.driver = self.make_driver(**(blocks | more | self.fixed))
        self.engine = self.driver.engine
        self.smallest_limit = self.engine.context_limit

    @precondition(lambda self: len(self.driver.requests) < self.max_requests)
    @rule(
        beginning=st.sampled_from(BEGINNINGS),
        shared=st.integers(0, 40),
        tail=st.lists(st.integers(36, 50), max_size=12),
        max_tokens=st.integers(1, 20),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        seed=st.integers(0, 3),
        stops=st.booleans(),
        temperature=st.sampled_from([0.0, 1.0]),
    )
    def ask(
        self,
        beginning: list[int],
        shared: int,
        tail: list[int],
        max_tokens: int,
        n: int,
        seed: int,
        stops: bool,
        **p: Any,
    ) -> None:
        text = (beginning[:shared] + tail)[: self.engine.context_limit - 1]
        if not text:
            with pytest.raises(InvalidRequest):
                self.driver.add(text, max_tokens)
        else:
            self.driver.add(text, max_tokens, n=n, seed=seed, eos=self.eos, ignore_eos=not stops, **p)

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()

    @rule()
    def one_step(self) -> None:
        self.driver.step()

    @rule()
    def a_moment_passes(self) -> None:
        self.driver.clock.advance(0.05)

    @precondition(lambda self: self.driver.requests)
    @rule(which=st.integers(0, 100), more=st.booleans())
    def abort(self, which: int, more: bool) -> None:
        requests = self.driver.requests
        request = requests[which % len(requests)]
        was_here = request.finish_reason is None
        assert (self.engine.abort(request.request_id) is request) == was_here
        assert not self.engine.scheduler.kv.holds(request.request_id) or not was_here
        if more:
            assert self.engine.abort(request.request_id) is None

    @rule()
    def look_while_paused(self) -> None:
        record = self.engine.record_news()
        if record is not None:
            self.driver.take(record)

    @rule(changes=SWITCHES)
    def switch(self, changes: dict[str, Any]) -> None:
        self.engine.change({name: value for name, value in changes.items() if name not in self.fixed})
        self.smallest_limit = min(self.smallest_limit, self.engine.context_limit)

    @precondition(lambda self: self.faults and self.engine.scheduler.running)
    @rule(which=st.integers(0, 100))
    def something_fails(self, which: int) -> None:
        """The next step raises, or one request's logits will be no numbers."""
        running = list(self.engine.scheduler.running)
        if which % 5 == 0:
            self.driver.runner.raises = RuntimeError("out of memory")
        else:
            self.driver.runner.wrong[running[which % len(running)]] = "NaN"

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.driver.run()
        for request in self.driver.requests:
            self.check_answer(request)
        kv = self.engine.scheduler.kv
        assert kv.num_free_blocks + kv.num_cached_blocks == kv.num_blocks
        self.seen.update(event.kind.value for record in self.driver.records for event in record.events)
        self.seen.update(wait.reason.value for record in self.driver.records for wait in record.waiting.values())
        self.seen.update(r.waiting_default.reason.value for r in self.driver.records if r.waiting_default)
        self.seen.update(str(request.finish_reason) for request in self.driver.requests)
        self.seen["hits"] += self.engine.scheduler.prefix_hit_tokens

    def check_answer(self, request: Request) -> None:
        got, reason = request.output_token_ids, request.finish_reason
        assert got == self.own_answer(request)[: len(got)]
        if reason == "stop":
            assert got[-1] in self.eos
        elif reason == "length":
            # A request that was preempted when the pool became smaller may end at the new pool's size.
            ends_at_the_limit = request.num_preemptions > 0 and request.num_tokens >= self.smallest_limit
            assert len(got) == request.max_tokens or ends_at_the_limit
        else:
            assert reason in ("abort", "error")
        if not request.params.ignore_eos:
            assert not set(got[:-1]) & set(self.eos)


QUICK = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


class CrowdedRuns(Traffic):
    """Always contiguous, with many requests that fill the pool: free blocks lie apart, as they rarely do by chance."""

    fixed: ClassVar[dict[str, Any]] = {"kv_layout": "contiguous", "block_size": 4, "num_blocks": 40, "max_num_seqs": 8}


def test_any_traffic_on_the_symbolic_runner() -> None:
    Traffic.seen.clear()
    run_state_machine_as_test(Traffic, settings=settings(QUICK, max_examples=350, stateful_step_count=50))
    run_state_machine_as_test(CrowdedRuns, settings=settings(QUICK, max_examples=100, stateful_step_count=50))
    # Nothing that can happen was left out.
    missing = {str(kind) for kind in (*EventKind, *FinishReason, *WaitReason, "hits") if not Traffic.seen[str(kind)]}
    assert not missing, Traffic.seen


def test_any_traffic_on_a_real_model(rand: Path) -> None:
    class RealTraffic(Traffic):
        max_requests = 8
        faults = False
        eos = tiny_runs.EOS

        def make_driver(self, **settings: Any) -> Driver:
            return tiny_runs.driver(rand, **settings)

        def own_answer(self, request: Request) -> list[int]:
            return tiny_runs.alone(rand, request)

    run_state_machine_as_test(RealTraffic, settings=settings(QUICK, max_examples=60, stateful_step_count=30))


def no_copy_on_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "refcount", lambda self, block_id: min(1, self._refcounts.get(block_id, 0)))


def evicted_blocks_are_still_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixIndex, "forget", lambda self, block_id: self._by_block.pop(block_id))


def blocks_are_found_by_their_own_tokens_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prefix_index, "block_digest", lambda parent, tokens: bytes(token % 256 for token in tokens))
    patch.setattr(prefix_index, "_is_same_prefix", lambda one, other: True)


def blocks_are_found_before_they_are_full(patch: pytest.MonkeyPatch) -> None:
    written = PagedLayout.written

    def too_early(self: PagedLayout, request: Request) -> None:
        computed = request.num_computed_tokens
        request.num_computed_tokens = min(request.num_tokens, computed + self.block_size)
        try:
            written(self, request)
        finally:
            request.num_computed_tokens = computed

    patch.setattr(PagedLayout, "written", too_early)


def blocks_are_not_cleared(patch: pytest.MonkeyPatch) -> None:
    take = ChangeLog.take
    patch.setattr(ChangeLog, "take", lambda self, tables: replace(take(self, tables), new_block_ids=()))


def a_preempted_request_forgets_its_newest_token(patch: pytest.MonkeyPatch) -> None:
    preempt = Scheduler._preempt

    def forgetful(self: Scheduler, victim: Request, beneficiary: Request) -> None:
        preempt(self, victim, beneficiary)
        del victim.output_token_ids[-1:]

    patch.setattr(Scheduler, "_preempt", forgetful)


def an_aborted_request_keeps_its_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "abort", lambda self, request_id, *_: self._by_id.pop(request_id, None))


def nobody_is_preempted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_make_room", lambda self, request, count: self.kv.extend(request, count))


@pytest.mark.parametrize(
    "fault",
    [
        no_copy_on_write,
        evicted_blocks_are_still_found,
        blocks_are_found_by_their_own_tokens_alone,
        blocks_are_found_before_they_are_full,
        blocks_are_not_cleared,
        a_preempted_request_forgets_its_newest_token,
        an_aborted_request_keeps_its_blocks,
        nobody_is_preempted,
    ],
)
def test_the_machine_would_notice(monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    fault(monkeypatch)
    broken = settings(
        QUICK, max_examples=400, stateful_step_count=50, phases=[Phase.generate], report_multiple_bugs=False
    )
    with pytest.raises(Exception):  # noqa: B017 - a wrong book is noticed here, a broken one breaks by itself
        run_state_machine_as_test(Traffic, settings=broken)
