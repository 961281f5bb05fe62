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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from engine.engine import Engine
from engine.runner import Runner
from engine.scheduling.request import FinishReason, Request
from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving.service_errors import EngineDead, QueueFull
from engine.serving.snapshot import snapshot
from engine.serving.stream import RequestMetrics, RequestStream
from engine.settings import EngineSettings
from engine.telemetry.journal import Journal
from engine.telemetry.record import EventKind, StepRecord, Wait
from engine.telemetry.ring import RecordRing, Steps
from engine.text.assembler import TextAssembler, stop_checker
from engine.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

UNWATCHED_PAUSE_S = 60.0
"""A paused engine goes on by itself when nobody has looked at it for this long."""

MAX_STEP_DELAY_S = 10.0


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
        self._wake = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._num_new = 0  # requests in the inbox
        self._streams: dict[int, RequestStream] = {}
        self._clients: dict[int, str] = {}
        self._next_id = 1
        self._thread: threading.Thread | None = None
        self._failure: str | None = "the engine has not started"
        self._stopping = False
        self._paused = False
        self._steps_allowed = 0  # while paused
        self._step_delay_s = 0.0
        self._watched_s = clock()
        self._set_up(settings)

    def _set_up(self, settings: EngineSettings) -> None:
        self.engine = Engine(self._runner, settings, self.clock, self._check_invariants)
        self.ring = RecordRing(secrets.token_hex(8))
        self._snapshot = snapshot(self.engine, None)

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine thread. Requests may come from now on."""
        # A Python thread that computes would keep the engine waiting 5 ms for every operator it dispatches.
        sys.setswitchinterval(1e-4)
        self._failure, self._stopping = None, False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End all requests with "abort", then the thread. Safe to call twice."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        self._failure = self._failure or "the engine was stopped"
        self._end_all_streams(FinishReason.ABORT, None)

    def restart(self) -> None:
        """A new, empty engine with the same weights, after the old one has died. Does nothing while it lives."""
        if self._failure is None:
            return
        self.stop()
        self._paused, self._steps_allowed = False, 0
        with self._wake:
            self._inbox.clear()
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
        self._check_prompt(prompt)
        limit = self.engine.settings.context_limit - len(prompt)
        max_tokens = limit if params.max_tokens is None else min(params.max_tokens, limit)
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        with self._wake:
            if self._failure is not None or self._stopping:
                raise EngineDead(self._failure or "the engine is stopping")
            waiting, most = len(self.engine.scheduler.queue) + self._num_new, self.engine.settings.max_queue
            if waiting + params.n > most:
                raise QueueFull(
                    f"{waiting} requests wait already and at most {most} may (this one would add {params.n}); "
                    "try again in a moment, or start the server with a larger --max-queue"
                )
            first_id = self._next_id
            self._next_id += params.n
            streams = []
            for i in range(params.n):
                request = Request(
                    request_id=first_id + i,
                    prompt_token_ids=prompt,
                    params=params,
                    max_tokens=max_tokens,
                    seed=seed + i,
                    eos_token_ids=self.eos_token_ids,
                    completes_stop=self._stop_checker(params),
                    sibling_of=first_id if i else None,
                    arrival_s=self.clock(),
                )
                streams.append(self._open_stream(request, client))
                self._num_new += 1
                self._inbox.append(lambda request=request: self._add(request))  # type: ignore[misc]
            self._wake.notify_all()
        return streams

    def abort(self, request_id: int) -> None:
        """End a request, in whatever state; unknown ids are ignored."""
        self._post(lambda: self._abort(request_id))

    def abort_client(self, client: str) -> None:
        """End all requests of one client."""
        with self._wake:
            ids = [request_id for request_id, name in self._clients.items() if name == client]
        for request_id in ids:
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
        self._post(change)
        while True:
            try:
                future.result(timeout=0.5)
                return self.state()
            except TimeoutError:
                if self._failure is not None:
                    raise EngineDead(self._failure) from None

    def state(self) -> dict[str, Any]:
        """The newest snapshot, as `GET /engine/state` answers it."""
        return self._snapshot | {
            **self._info,
            "model": self.model_name,
            "epoch": self.ring.epoch,
            "paused": self._paused,
            "step_delay_s": self._step_delay_s,
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
        record = self.ring.last
        if record is None or request_id in record.num_tokens:
            return None
        if request_id in record.waiting:
            return record.waiting[request_id]
        return record.waiting_default if request_id in record.pending_prefill else None

    @property
    def journal(self) -> Journal:
        """What came to the present engine from outside, for traces."""
        return self.engine.journal

    def add_listener(self, listener: Callable[[StepRecord], None]) -> None:
        """Call `listener` with every record, in the engine thread: it must be quick. If it raises it is dropped."""
        self._listeners.append(listener)

    def watch(self) -> None:
        """Somebody looks: keeps a paused engine paused."""
        self._watched_s = self.clock()

    # -- inbox -------------------------------------------------------------------------------------------------

    def _post(self, action: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(action)
            self._wake.notify_all()

    def _check_prompt(self, prompt: tuple[int, ...]) -> None:
        self.engine.check_fits(len(prompt))
        for token_id in prompt:
            if token_id < 0 or (self.vocab_size is not None and token_id >= self.vocab_size):
                known = f"0 to {self.vocab_size - 1}" if self.vocab_size is not None else "0 and more"
                raise InvalidRequest(f"token id {token_id} is not in the vocabulary ({known})", "prompt")

    def _stop_checker(self, params: SamplingParams) -> Callable[[int], bool] | None:
        if not params.stop:
            return None
        if self.tokenizer is None:
            raise InvalidRequest("stop strings need a tokenizer, and this engine has none", "stop")
        return stop_checker(self.tokenizer, params.stop, params.min_tokens)

    def _open_stream(self, request: Request, client: str | None) -> RequestStream:
        params = request.params
        assembler = TextAssembler(self.tokenizer, params.stop, params.min_tokens) if self.tokenizer else None
        stream = RequestStream(
            request.request_id, request.num_prompt_tokens, params, assembler, request.eos_token_ids, self.abort
        )
        self._streams[request.request_id] = stream
        if client is not None:
            self._clients[request.request_id] = client
        return stream

    # -- the engine thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_inbox()
                if self._may_step() and self._step():
                    self._sleep(self._step_delay_s)
                else:
                    self._publish_news()
                    self._wait_for_work()
            self._abort_all()
        except BaseException as error:
            log.exception("The engine thread has died")
            self._failure = f"the engine has died ({type(error).__name__}); restart it from the page or start it again"
            self._end_all_streams(FinishReason.ERROR, self._failure)
            with self._wake:
                self._inbox.clear()
                self._num_new = 0

    def _take_inbox(self) -> None:
        while True:
            with self._wake:
                if not self._inbox:
                    return
                action = self._inbox.popleft()
            action()

    def _may_step(self) -> bool:
        if not self._paused:
            return True
        if self.clock() - self._watched_s > UNWATCHED_PAUSE_S:
            log.info("Nobody has watched the paused engine for %.0f s: it goes on", UNWATCHED_PAUSE_S)
            self._paused = False
            return True
        return self._steps_allowed > 0 or self.engine.pending_settings is not None

    def _step(self) -> bool:
        """One step of the engine; False when there was nothing to do."""
        record = self.engine.step()
        if record is None:
            return False
        if self._paused and self._steps_allowed > 0:
            self._steps_allowed -= 1
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
        for request_id, token in self.engine.last_output.sampled.items():
            stream = self._streams.get(request_id)
            if stream is not None:
                stream.push(token)
        for event in record.events:
            if event.kind is EventKind.FINISHED and event.request_id is not None:
                self._end_stream(event.request_id, event.details)
        self.ring.append(record)
        self._snapshot = snapshot(self.engine, record)
        for listener in list(self._listeners):
            try:
                listener(record)
            except Exception:
                log.exception("A listener of step records failed and is dropped")
                self._listeners.remove(listener)
        self.engine.publish_s = time.perf_counter() - started

    def _sleep(self, seconds: float) -> None:
        """Slow motion: wait between steps, but take in and show what comes meanwhile."""
        until = self.clock() + seconds
        while seconds > 0 and not self._stopping and (left := until - self.clock()) > 0:
            with self._wake:
                if not self._inbox:
                    self._wake.wait(left)
            self._take_inbox()
            self._publish_news()
            seconds = self._step_delay_s

    def _wait_for_work(self) -> None:
        wake_s = None if self._paused else self.engine.next_wake_s()
        timeout = max(0.0, wake_s - self.clock()) if wake_s is not None else (1.0 if self._paused else None)
        with self._wake:
            if not self._inbox and not self._stopping:
                self._wake.wait(timeout)

    def _add(self, request: Request) -> None:
        with self._wake:
            self._num_new -= 1
        try:
            self.engine.add(request)
        except InvalidRequest as error:  # the settings have changed since it was checked at the door
            self._streams.pop(request.request_id).end(FinishReason.ERROR, str(error))
            self._clients.pop(request.request_id, None)

    def _abort(self, request_id: int) -> None:
        self.engine.abort(request_id)

    def _change(self, changes: dict[str, Any]) -> None:
        paused, step, delay = (changes.pop(name, None) for name in ("paused", "step", "step_delay_s"))
        if paused is not None and not isinstance(paused, bool):
            raise InvalidRequest(f"paused must be true or false, got {paused!r}", "paused")
        if step is not None and (isinstance(step, bool) or not isinstance(step, int) or not 1 <= step <= 1000):
            raise InvalidRequest(f"step must be a whole number from 1 to 1000, got {step!r}", "step")
        is_number = isinstance(delay, (int, float)) and not isinstance(delay, bool)
        if delay is not None and not (is_number and 0 <= delay <= MAX_STEP_DELAY_S):
            raise InvalidRequest(
                f"step_delay_s must be 0 to {MAX_STEP_DELAY_S:g} seconds, got {delay!r}", "step_delay_s"
            )
        if changes:
            self.engine.change(changes)
        if paused is not None:
            self._paused, self._steps_allowed = paused, 0
            self.watch()
        if step is not None:
            self._paused = True
            self._steps_allowed += step
            self.watch()
        if delay is not None:
            self._step_delay_s = float(delay)
        self._snapshot = snapshot(self.engine, self.ring.last)

    # -- ends --------------------------------------------------------------------------------------------------

    def _end_stream(self, request_id: int, details: Mapping[str, Any]) -> None:
        stream = self._streams.pop(request_id, None)
        self._clients.pop(request_id, None)
        if stream is not None:
            metrics = RequestMetrics(
                num_prompt_tokens=details["num_prompt_tokens"],
                num_output_tokens=details["num_output_tokens"],
                num_cached_tokens=details["cached_tokens"],
                num_preemptions=details["num_preemptions"],
                e2e_s=details["e2e_s"],
                queue_s=details.get("queue_s"),
                ttft_s=details.get("ttft_s"),
                prefill_s=details.get("prefill_s"),
                decode_s=details.get("decode_s"),
            )
            stream.end(details["reason"], details.get("error"), metrics)

    def _abort_all(self) -> None:
        """The service stops: every request ends properly, and the last record says so."""
        self._take_inbox()
        for request_id in list(self._streams):
            self.engine.abort(request_id)
        self._publish_news()

    def _end_all_streams(self, reason: FinishReason, error: str | None) -> None:
        with self._wake:
            streams = list(self._streams.values())
            self._streams.clear()
            self._clients.clear()
        for stream in streams:
            stream.end(reason, error)
