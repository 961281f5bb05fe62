"""The engine service: the one thread that runs the engine, and the doors to it that any thread may use.

Owns the inbox, the streams, pausing, and what happens when the engine dies. Never knows HTTP or pages.
What crosses between threads is an inbox entry, a token or a frozen record; nobody else ever touches the engine.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from engine.engine import Engine
from engine.runner import Runner
from engine.scheduling.request import FinishReason, Request
from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving import pacing
from engine.serving.inbox import Inbox
from engine.serving.intake import Intake
from engine.serving.open_streams import OpenStreams
from engine.serving.pacing import Pacing
from engine.serving.service_errors import EngineDead, QueueFull
from engine.serving.snapshot import snapshot, wait_reason
from engine.serving.stream import RequestStream
from engine.settings import CHANGEABLE, EngineSettings
from engine.telemetry.journal import Journal
from engine.telemetry.record import StepRecord, Wait
from engine.telemetry.ring import BlockMap, RecordRing, Steps
from engine.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class EngineService:
    """Runs an `Engine` on a thread of its own. `submit`, `abort`, `control`, `state` and `steps` may be called from
    any thread; none of them waits for a step except `control`.

    `info` is shown with the state (model, device, dtype). `record_sinks` and listeners are called with each record in
    the engine thread; one that raises is dropped and the engine goes on.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer | None,
        settings: EngineSettings,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        vocab_size: int | None = None,
        model_name: str = "model",
        info: Mapping[str, Any] | None = None,
        check_invariants: bool = False,
        clock: Callable[[], float] = time.monotonic,
        record_sinks: Sequence[Callable[[StepRecord], None]] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.model_name = model_name
        self.eos_token_ids = eos_token_ids
        self.clock = clock
        self._runner = runner
        self._info = dict(info or {})
        self._check_invariants = check_invariants
        self._listeners: list[Callable[[StepRecord], None]] = list(record_sinks)
        self._inbox = Inbox()
        self._num_new = 0  # requests in the inbox
        self._streams = OpenStreams(tokenizer, self.abort)
        self._intake = Intake(tokenizer, eos_token_ids, vocab_size)
        self._next_id = 1
        self._thread: threading.Thread | None = None
        self._failure: str | None = "the engine has not started"
        self._stopping = False
        self._pacing = Pacing(clock)
        self._set_up(settings)

    def _set_up(self, settings: EngineSettings) -> None:
        self.engine = Engine(self._runner, settings, self.clock, self._check_invariants)
        self.ring = RecordRing(secrets.token_hex(8), base=BlockMap(prefix_caching=settings.prefix_caching))
        self._snapshot = snapshot(self.engine, None)

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine thread. Requests may come from now on. Does nothing while it runs."""
        if self._thread is not None and self._thread.is_alive():
            return
        # A Python thread that computes would keep the engine waiting 5 ms for every operator it dispatches.
        sys.setswitchinterval(1e-4)
        self._inbox.open()
        self._failure, self._stopping = None, False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End all requests with "abort", then the thread. Safe to call twice."""
        with self._inbox.lock:
            self._stopping = True
        self._inbox.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        self._failure = self._failure or "the engine was stopped"
        self._streams.end_all(FinishReason.ABORT, None)

    def restart(self, timeout_s: float = 5.0) -> None:
        """A new, empty engine with the same weights, after the old one has died. Does nothing while it lives.

        Raises EngineDead when the old thread is still in a step: two of them must never share one pool.
        """
        if self._failure is None:
            return
        self.stop(timeout_s)
        if self._thread is not None and self._thread.is_alive():
            raise EngineDead("the old engine is still busy with its last step; try again in a moment")
        self._pacing.resume()
        self._inbox.clear()  # nobody adds to it: the failure stands until `start`
        self._num_new = 0
        self._set_up(self.engine.settings)
        self.start()

    def health(self) -> str | None:
        """None while the engine serves, else why it does not."""
        return self._failure

    # -- doors, for any thread ---------------------------------------------------------------------------------

    def submit(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, *, client: str | None = None
    ) -> list[RequestStream]:
        """Queue a prompt; one stream for each of `params.n` answers. `client` names whose it is, for `abort_client`.

        Raises InvalidRequest for what can never run, QueueFull when too many wait, EngineDead when nothing runs.
        """
        prompt = tuple(prompt_token_ids)
        self.engine.check_fits(len(prompt))
        self._intake.check_vocabulary(prompt)
        with self._inbox.lock:
            if self._failure is not None or self._stopping:
                raise EngineDead(self._failure or "the engine is stopping")
            waiting, most = len(self.engine.scheduler.queue) + self._num_new, self.engine.settings.max_queue
            if params.n > most:
                raise InvalidRequest(f"n is {params.n}, but at most {most} requests may wait; lower n", "n")
            if waiting + params.n > most:
                raise QueueFull(
                    f"{waiting} requests wait already and at most {most} may (this one would add {params.n}); "
                    "try again in a moment, or start the server with a larger --max-queue"
                )
            family = self._intake.family(self._next_id, prompt, params, self.engine.context_limit, self.clock())
            self._next_id += params.n
            self._num_new += params.n
            streams = [self._streams.open(request, client) for request in family]
            for request in family:
                self._inbox.post(partial(self._add, request))
        return streams

    def abort(self, request_id: int) -> None:
        """End a request, in whatever state; unknown ids are ignored."""
        self._inbox.post(partial(self.engine.abort, request_id))

    def abort_client(self, client: str) -> None:
        """End all requests of one client."""
        for request_id in self._streams.ids_of(client):
            self.abort(request_id)

    def control(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change switches and sizes, pause, resume, step; returns the state. Waits for the step that runs.

        Raises InvalidRequest for an unknown name or a wrong value (then nothing has changed), EngineDead.
        """
        future: Future[None] = Future()

        def change() -> None:
            try:
                self._change(dict(changes))
                future.set_result(None)
            except Exception as error:
                future.set_exception(error)

        if self._failure is not None:
            raise EngineDead(self._failure)
        self._inbox.post(change)
        while not wait([future], timeout=0.5).done:
            if self._failure is not None:
                raise EngineDead(self._failure)
        future.result()
        return self.state()

    def state(self) -> dict[str, Any]:
        """The newest snapshot, as `GET /engine/state` answers it."""
        return self._snapshot | {
            **self._info,
            "model": self.model_name,
            "epoch": self.ring.epoch,
            "paused": self._pacing.is_paused,
            "step_delay_s": self._pacing.step_delay_s,
            "failure": self._failure,
        }

    def steps(self, since: int | None = None, epoch: str | None = None, limit: int | None = None) -> Steps:
        """Step records newer than `since`; see `RecordRing.since`."""
        return self.ring.since(since, epoch, limit)

    def queue_position(self, request_id: int) -> int | None:
        """1 for the next request to come in; None when it does not wait in the queue."""
        queue = self._snapshot["queue"]
        return queue.index(request_id) + 1 if request_id in queue else None

    def wait_reason(self, request_id: int) -> Wait | None:
        """Why a request was not in the newest step; None when it was, or is not here."""
        return wait_reason(self.ring.last, request_id)

    @property
    def journal(self) -> Journal:
        """What came to the present engine from outside, for traces."""
        return self.engine.journal

    def add_listener(self, listener: Callable[[StepRecord], None]) -> None:
        """Call `listener` with every record, in the engine thread: it must be quick. If it raises it is dropped."""
        self._listeners.append(listener)

    def watch(self) -> None:
        """Somebody looks: keeps a paused engine paused."""
        self._pacing.watch()

    # -- the engine thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._inbox.run_all()
                if self._may_step() and self._step():
                    self._sleep(self._pacing.step_delay_s)
                else:
                    self._publish_news()
                    self._wait_for_work()
            self._abort_all()
        except BaseException as error:
            log.exception("The engine thread has died")
            with self._inbox.lock:  # a request is either refused from here on, or its stream is open and ends below
                self._failure = f"the engine has died ({type(error).__name__}); restart it"
                self._inbox.clear()
                self._num_new = 0
            self._streams.end_all(FinishReason.ERROR, self._failure)

    def _may_step(self) -> bool:
        is_draining = self.engine.pending_settings is not None and bool(self.engine.scheduler.running)
        return is_draining or self._pacing.may_step()  # a drain goes on although the engine is paused

    def _step(self) -> bool:
        """One step of the engine; False when there was nothing to do."""
        record = self.engine.step()
        if record is None:
            return False
        self._pacing.stepped()
        if self.engine.last_error is not None:
            log.error("A step failed; its requests end with an error", exc_info=self.engine.last_error)
            self.engine.last_error = None
        self._publish(record)
        return True

    def _publish_news(self) -> None:
        """What happened without a step (arrivals and aborts of a paused engine) is shown at once."""
        record = self.engine.record_news()
        if record is not None:
            self._publish(record)

    def _publish(self, record: StepRecord) -> None:
        started = time.perf_counter()
        self.ring.append(record)
        self._snapshot = snapshot(self.engine, record)
        for listener in list(self._listeners):
            try:
                listener(record)
            except Exception:
                log.exception("A listener of step records failed and is dropped")
                self._listeners.remove(listener)
        # Last: whoever has an answer's end finds it in state, records and metrics too.
        self._streams.publish(record, self.engine.last_output.sampled)
        self.engine.publish_s = time.perf_counter() - started

    def _sleep(self, seconds: float) -> None:
        """Slow motion: wait between steps, but take in and show what comes meanwhile."""
        until = self.clock() + seconds
        while seconds > 0 and not self._stopping and (left := until - self.clock()) > 0:
            self._inbox.wait(left)
            self._inbox.run_all()
            self._publish_news()
            seconds = self._pacing.step_delay_s

    def _wait_for_work(self) -> None:
        is_paused = self._pacing.is_paused
        wake_s = None if is_paused else self.engine.next_wake_s()
        timeout = max(0.0, wake_s - self.clock()) if wake_s is not None else (1.0 if is_paused else None)
        self._inbox.wait(timeout)

    def _add(self, request: Request) -> None:
        try:
            with self._inbox.lock:  # at no moment is it in neither count, or one more than may wait would get in
                self._num_new -= 1
                self.engine.add(request)
        except InvalidRequest as error:  # the settings have changed since it was checked at the door
            self._streams.end(request.request_id, FinishReason.ERROR, str(error))

    def _change(self, changes: dict[str, Any]) -> None:
        paces = {name: changes.pop(name) for name in pacing.NAMES if name in changes}
        self._pacing.check(paces)  # before anything is changed
        unknown = next((name for name in changes if name not in CHANGEABLE), None)
        if unknown is not None:
            known = ", ".join((*CHANGEABLE, *pacing.NAMES))
            raise InvalidRequest(f"{unknown!r} cannot be changed while the engine runs; what can: {known}", unknown)
        if changes:
            self.engine.change(changes)
        self._pacing.change(paces)
        self._snapshot = snapshot(self.engine, self.ring.last)

    def _abort_all(self) -> None:
        """The service stops: every request ends properly, and the last record says so."""
        self._inbox.run_all()
        for request_id in self._streams.ids():
            self.engine.abort(request_id)
        self._publish_news()
