"""Drives an engine step by step, and holds every record against what it tells of."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from engine.engine import Engine
from engine.kv.paged import PagedLayout
from engine.runner import Runner
from engine.scheduling.request import Request
from engine.scheduling.sampling_params import SamplingParams
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock
from engine.telemetry.record import StepRecord, Wait, WaitReason
from engine.telemetry.ring import BlockMap
from tests.symbolic_runner import SymbolicRunner

ONE_KIND_A_STEP = ("static", "decode_first", "prefill_first")


class Driver:
    """An engine with a clock of its own, 10 ms a step, whose every step is checked."""

    def __init__(self, runner: Runner | None = None, **settings: Any) -> None:
        self.clock = SimulatedClock(100.0)
        self.runner: Any = runner or SymbolicRunner()
        self.engine = Engine(self.runner, EngineSettings(**settings), self.clock, check_invariants=True)
        self.requests: list[Request] = []
        self.records: list[StepRecord] = []
        self.sent: dict[int, list[int]] = {}
        """Tokens by request, in the order in which steps told of them."""
        self.map = BlockMap(0, self.engine.settings.num_blocks, self.engine.settings.block_size)

    # -- requests ----------------------------------------------------------------------------------------------

    def add(
        self,
        prompt: Sequence[int] | int,
        max_tokens: int = 8,
        *,
        n: int = 1,
        eos: Sequence[int] = (),
        completes_stop: Callable[[int], bool] | None = None,
        seed: int = 0,
        **params: Any,
    ) -> list[Request]:
        """Queue `n` answers to one prompt. A number is a prompt of that length that begins like no other."""
        if isinstance(prompt, int):
            prompt = unique_prompt(len(self.requests), prompt)
        settings = SamplingParams(max_tokens=max_tokens, n=n, **({"temperature": 0.0} | params))
        first_id = len(self.requests)
        family = [
            Request(
                request_id=first_id + i,
                prompt_token_ids=tuple(prompt),
                params=settings,
                max_tokens=max_tokens,
                seed=seed + i,
                eos_token_ids=frozenset(eos),
                completes_stop=completes_stop,
                sibling_of=first_id if i else None,
                arrival_s=self.clock(),
            )
            for i in range(n)
        ]
        for request in family:
            self.engine.add(request)
        self.requests += family
        return family

    def one(self, prompt: Sequence[int] | int, max_tokens: int = 8, **more: Any) -> Request:
        """Queue one."""
        return self.add(prompt, max_tokens, **more)[0]

    # -- steps -------------------------------------------------------------------------------------------------

    def step(self) -> StepRecord | None:
        """One step, checked, 10 ms long."""
        record = self.engine.step()
        self.clock.advance(0.01)
        if record is not None:
            self.take(record)
        return record

    def steps(self, count: int) -> list[StepRecord]:
        """So many steps, of which each does something."""
        records = [self.step() for _ in range(count)]
        assert all(record is not None for record in records)
        return [record for record in records if record is not None]

    def take(self, record: StepRecord) -> None:
        """Check a record and what it says has changed."""
        self.records.append(record)
        check_record(record, self.records[-2] if len(self.records) > 1 else None)
        self.map.apply(record)
        for request_id, token in self.engine.last_output.sampled.items():
            self.sent.setdefault(request_id, []).append(token.token_id)
        for request in self.requests:
            assert self.sent.get(request.request_id, []) == request.output_token_ids, "told and kept differ"
        kv, running = self.engine.scheduler.kv, self.engine.scheduler.running
        held = {request_id: kv.table(request_id) for request_id in self.map.tables}
        assert self.map.tables == held
        assert set(running) <= set(held)
        computed = {request_id: request.num_computed_tokens for request_id, request in running.items()}
        assert {rid: count for rid, count in self.map.computed.items() if rid in running} == computed
        assert set(self.map.requests) == {request.request_id for request in self.engine.scheduler.unfinished}
        if isinstance(kv, PagedLayout):
            assert set(self.map.cached) == set(kv._index.block_ids())
        if isinstance(self.runner, SymbolicRunner):
            assert self.runner.faults == []

    def run(self, max_steps: int = 5000) -> list[StepRecord]:
        """Until nobody is left; the records of these steps. Fails when nothing happens for a second."""
        first, idle = len(self.records), 0
        for _ in range(max_steps):
            if not self.engine.can_work:
                break
            idle = 0 if self.step() is not None else idle + 1
            assert idle < 100, "the engine waits for nothing"
        assert not self.engine.can_work, f"not done after {max_steps} steps"
        assert self.engine.scheduler.kv.num_active_blocks == 0
        assert self.engine.scheduler.kv.num_stored_tokens == 0
        return self.records[first:]

    # -- looking back ------------------------------------------------------------------------------------------

    def wait(self, request: Request) -> Wait | None:
        """Why the request was not in the newest step."""
        return wait_of(self.records[-1], request.request_id)

    def reason(self, request: Request) -> WaitReason | None:
        """The same without its numbers."""
        wait = self.wait(request)
        return wait.reason if wait else None

    def events(self, kind: str) -> list[tuple[int | None, dict[str, Any]]]:
        """(request id, details) of all events of a kind."""
        return [(e.request_id, dict(e.details)) for r in self.records for e in r.events if e.kind == kind]

    def steps_with(self, request: Request) -> list[int]:
        """The steps that gave the request a token."""
        return [record.step for record in self.records if request.request_id in record.outputs]


def unique_prompt(number: int, length: int) -> list[int]:
    """A prompt that shares no block with that of another number."""
    return [1000 + number] + [(number * 7 + i) % 40 for i in range(length - 1)]


def wait_of(record: StepRecord, request_id: int) -> Wait | None:
    """Why a request was not in a step; None when it was, or was not here."""
    if request_id in record.num_tokens:
        return None
    if request_id in record.waiting:
        return record.waiting[request_id]
    return record.waiting_default if request_id in record.pending_prefill else None


def check_record(record: StepRecord, before: StepRecord | None) -> None:
    """What must hold of any record."""
    active = (*record.active_prefill, *record.active_decode)
    assert len(set(active)) == len(active)
    assert set(record.active_prefill) <= set(record.pending_prefill)
    assert set(record.active_decode) <= set(record.pending_decode)
    assert set(record.num_tokens) == set(active)
    assert len(active) <= record.max_num_seqs
    rows = sum(record.num_tokens.values()) + sum(record.padding.values()) + record.num_inactive_rows
    assert rows <= record.token_budget
    assert all(record.num_tokens[request_id] == 1 for request_id in record.active_decode)
    if record.policy in ONE_KIND_A_STEP:
        assert not (record.active_prefill and record.active_decode)
    for request_id in (*record.pending_prefill, *record.pending_decode):
        assert (wait_of(record, request_id) is None) == (request_id in active), f"no reason for {request_id}"
    assert record.num_free_blocks + record.num_cached_blocks + record.num_active_blocks == record.num_blocks
    assert record.num_stored_tokens <= record.num_active_blocks * record.block_size
    assert 0 <= record.internal_fragmentation < 1 or record.num_stored_tokens == 0
    assert 0 <= record.external_fragmentation < 1
    assert record.duration_s >= 0
    times = [getattr(record.times, name) for name in record.times.__dataclass_fields__]
    assert min(times) >= 0
    json.dumps(record.to_dict(), allow_nan=False)
    if before is not None:
        assert record.step == before.step + 1
        assert record.time_s >= before.time_s
        for name in (
            "num_preemptions",
            "num_evictions",
            "prefix_query_tokens",
            "prefix_hit_tokens",
            "wasted_slot_steps",
        ):
            assert getattr(record, name) >= getattr(before, name)
