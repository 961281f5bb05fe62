"""Sends a workload through the service's door, the same one that people's requests come through.

Owns one thread with one event loop, and the tally of what came of the requests. Never knows how requests are
scheduled, and keeps no text: the answers of a load generator are read and forgotten.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving.service_errors import EngineDead, QueueFull
from engine.serving.workload import Arrivals, Workload, WorkloadRequest

if TYPE_CHECKING:
    from engine.serving.service import EngineService

LOAD_CLIENT = "load-generator"


class LoadBusy(RuntimeError):
    """A load is already running; stop it first."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """What came of the workload so far."""

    name: str = ""
    total: int = 0
    sent: int = 0
    finished: int = 0
    refused: int = 0
    failed: int = 0
    stopped: int = 0
    num_output_tokens: int = 0
    elapsed_s: float = 0.0
    is_running: bool = False
    last_error: str | None = None


@dataclass(slots=True)
class _Tally:
    progress: LoadProgress
    metrics: list[Any] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)


class LoadRunner:
    """Runs one workload at a time against a service.

    `vocabulary` are the token ids that prompts are made of. `client` is the name under which the requests are
    submitted, so that stopping aborts exactly these.
    """

    def __init__(self, service: EngineService, vocabulary: Sequence[int], client: str = LOAD_CLIENT) -> None:
        if not vocabulary:
            raise ValueError("a load generator needs at least one token id to make prompts of")
        self._service = service
        self._vocabulary = tuple(vocabulary)
        self._client = client
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._tally = _Tally(LoadProgress())
        self._started_s = 0.0

    @property
    def metrics(self) -> list[Any]:
        """The metrics of each finished request of the newest run, in the order they ended."""
        return list(self._tally.metrics)

    @property
    def request_numbers(self) -> dict[int, int]:
        """The engine's id of each request sent → its place in the workload, from 1."""
        return dict(self._tally.numbers)

    def progress(self) -> LoadProgress:
        """The state of the newest run."""
        progress = self._tally.progress
        return replace(progress, elapsed_s=time.monotonic() - self._started_s) if progress.is_running else progress

    def start(self, workload: Workload, name: str = "workload") -> None:
        """Begin to send `workload` and return at once. Raises LoadBusy while another one runs."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                raise LoadBusy("a load is already running; stop it first")
            self._stopping.clear()
            self._started_s = time.monotonic()
            self._tally = _Tally(LoadProgress(name, total=len(workload.requests), is_running=True))
            self._thread = threading.Thread(
                target=self._run, args=(workload, self._tally), name="load-generator", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Send nothing more and abort what was sent and has not ended. Returns at once; twice is harmless."""
        self._stopping.set()
        self._service.abort_client(self._client)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the run to end; True when it has."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    def _run(self, workload: Workload, tally: _Tally) -> None:
        try:
            asyncio.run(self._send_all(workload, tally))
        finally:
            tally.progress = replace(tally.progress, is_running=False, elapsed_s=time.monotonic() - self._started_s)

    async def _send_all(self, workload: Workload, tally: _Tally) -> None:
        closed = workload.spec.arrivals is Arrivals.CLOSED
        tasks: set[asyncio.Task[None]] = set()
        for chain in _chains(workload):
            if not closed:
                await self._sleep_until(self._started_s + (chain[0].arrival_s or 0.0))
            if self._stopping.is_set():
                break
            tasks.add(asyncio.create_task(self._send_chain(workload, chain, tally)))
            tasks = {task for task in tasks if not task.done()}
        while tasks:
            _, tasks = await asyncio.wait(tasks, timeout=0.1)
            if self._stopping.is_set():
                # what was submitted in the very moment of stopping came after the first abort
                self._service.abort_client(self._client)

    async def _send_chain(self, workload: Workload, chain: Sequence[WorkloadRequest], tally: _Tally) -> None:
        for position, request in enumerate(chain):
            if position:
                await self._sleep_until(time.monotonic() + workload.spec.think_s)
            if self._stopping.is_set():
                return
            await self._send(workload, request, tally)

    async def _sleep_until(self, due_s: float) -> None:
        while not self._stopping.is_set() and (left := due_s - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.05))

    async def _send(self, workload: Workload, request: WorkloadRequest, tally: _Tally) -> None:
        params = SamplingParams(
            max_tokens=request.num_output_tokens, temperature=0.0, ignore_eos=True, seed=workload.spec.seed
        )
        prompt = workload.prompt_token_ids(request, self._vocabulary)
        try:
            streams = self._service.submit(prompt, params, client=self._client)
        except (InvalidRequest, QueueFull, EngineDead) as error:  # refused at the door
            _count(tally, refused=1)
            tally.progress = replace(tally.progress, last_error=str(error))
            return
        _count(tally, sent=1)
        tally.numbers[streams[0].request_id] = request.index + 1
        reason, words = None, None
        for stream in streams:
            async for chunk in stream:
                _count(tally, num_output_tokens=len(chunk.token_ids))
                reason, words = chunk.finish_reason, chunk.error
                if chunk.metrics is not None and reason in ("stop", "length"):
                    tally.metrics.append(chunk.metrics)
        _count(tally, **{_OUTCOME.get(str(reason), "failed"): 1})
        if words:
            tally.progress = replace(tally.progress, last_error=words)


_OUTCOME = {"stop": "finished", "length": "finished", "abort": "stopped"}


def _count(tally: _Tally, **by: int) -> None:
    progress = tally.progress
    tally.progress = replace(progress, **{name: getattr(progress, name) + more for name, more in by.items()})


def _chains(workload: Workload) -> list[list[WorkloadRequest]]:
    """The requests of each user in order; whoever comes on their own is a chain of one."""
    chains: dict[int, list[WorkloadRequest]] = {}
    for request in workload.requests:
        chains.setdefault(request.user, []).append(request)
    return list(chains.values())
