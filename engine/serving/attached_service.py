"""Somebody else's server behind the doors of an engine service: the page and the load generator drive it over HTTP.

Owns the connection, the requests that were sent through it, and step records made up from what can be seen from
outside: when pieces of our answers came, and what the server's `/metrics` say of all others. Never knows blocks,
policies or reasons; panels that need them stay empty. One second of the other server is one record.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NoReturn

import httpx

from engine.scheduling.plan import SampledToken
from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving.remote_client import Piece, RemoteFailure, ask, request_for
from engine.serving.remote_figures import RemoteFigures, read_figures
from engine.serving.remote_records import RemoteRecords, Sent
from engine.serving.service_errors import EngineDead
from engine.serving.stream import RequestMetrics, RequestStream
from engine.telemetry.journal import Journal
from engine.telemetry.record import StepRecord, Wait
from engine.telemetry.ring import RecordRing, Steps
from engine.text.assembler import TextDelta

log = logging.getLogger(__name__)

POLL_S = 1.0
UNKNOWN_CONTEXT = 8192


class TextPieces:
    """`TextAssembler`'s side towards a stream: the text is there already, one piece a token."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque()

    def add(self, text: str) -> SampledToken:
        """Keep a piece; the token stands for it, its id means nothing."""
        self._texts.append(text)
        return SampledToken(0)

    def push(self, token_id: int) -> TextDelta:
        """The oldest piece that was not taken yet."""
        return TextDelta(self._texts.popleft(), False)

    def finish(self) -> str:
        """Nothing is held back."""
        return ""


@dataclass
class _Open:
    """A request on its way."""

    stream: RequestStream
    pieces: TextPieces
    sent: Sent
    client: str | None
    task: asyncio.Future[None] | None = None
    usage: dict[str, Any] = field(default_factory=dict)


class AttachedService:
    """`EngineService`'s doors onto the server at `url`. `api_key` is that server's."""

    tokenizer = None

    def __init__(self, url: str, model_name: str, api_key: str | None = None, max_model_len: int | None = None) -> None:
        self.model_name = model_name
        self.url = url
        self._max_model_len = max_model_len or UNKNOWN_CONTEXT
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._open: dict[int, _Open] = {}
        self._ids = count(1)
        self._figures = RemoteFigures()
        self._failure: str | None = "not connected yet"
        self._listeners: list[Callable[[StepRecord], None]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="attached", daemon=True)
        self._records = RemoteRecords(time.monotonic)
        self.ring = RecordRing(secrets.token_hex(8))
        self.journal = Journal(time.monotonic(), {})

    # -- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, and look at the server's metrics every second."""
        self._failure = None
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Abort what is on its way and disconnect."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_s)
        self._failure = "the page was detached"

    def restart(self) -> None:
        """Nothing of ours can die."""

    def health(self) -> str | None:
        """None while the other server answers."""
        return self._failure

    # -- doors -------------------------------------------------------------------------------------------------

    def submit(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, *, client: str | None = None
    ) -> list[RequestStream]:
        """Send a prompt, once for each answer. Raises InvalidRequest, EngineDead."""
        if self._failure is not None:
            raise EngineDead(self._failure)
        if not prompt_token_ids:
            raise InvalidRequest("the prompt is empty; send at least one token", "prompt")
        streams = []
        for number in range(params.n):
            seed = None if params.seed is None else params.seed + number
            route, body = request_for(prompt_token_ids, params, self.model_name, seed)
            request_id, pieces = next(self._ids), TextPieces()
            stream = RequestStream(request_id, len(prompt_token_ids), params, pieces, frozenset(), self.abort)  # type: ignore[arg-type]
            sent = Sent(request_id, len(prompt_token_ids), params.max_tokens or 0, time.monotonic())
            self._open[request_id] = _Open(stream, pieces, sent, client)
            self._loop.call_soon_threadsafe(self._send, request_id, route, body)
            streams.append(stream)
        return streams

    def abort(self, request_id: int) -> None:
        """Close a request's connection, which tells the other server to stop."""
        with suppress(RuntimeError):  # the loop is closed: everything has been aborted
            self._loop.call_soon_threadsafe(self._cancel, request_id)

    def abort_client(self, client: str) -> None:
        """All of one client."""
        for request_id, one in list(self._open.items()):
            if one.client == client:
                self.abort(request_id)

    def control(self, changes: Mapping[str, Any]) -> NoReturn:
        """Raises InvalidRequest: a server is not steered from another's page."""
        raise InvalidRequest(f"this page is attached to {self.url}; its settings cannot be changed from here")

    def state(self) -> dict[str, Any]:
        """The contract's keys, as far as they can be known, and `attached`: the other server's address and figures."""
        return self._records.state() | {
            "max_model_len": self._max_model_len,
            "model": self.model_name,
            "device": self.url,
            "epoch": self.ring.epoch,
            "failure": self._failure,
            "attached": {
                "url": self.url,
                "has_metrics": not self._figures.is_empty,
                "mean_ttft_s": self._figures.mean_ttft_s,
            },
        }

    def steps(self, since: int | None = None, epoch: str | None = None, limit: int | None = None) -> Steps:
        """Records newer than `since`; see `RecordRing.since`."""
        return self.ring.since(since, epoch, limit)

    def queue_position(self, request_id: int) -> int | None:
        """Only the other server knows."""
        return None

    def wait_reason(self, request_id: int) -> Wait | None:
        """Only the other server knows."""
        return None

    def add_listener(self, listener: Callable[[StepRecord], None]) -> None:
        """Call `listener` with every record."""
        self._listeners.append(listener)

    def watch(self) -> None:
        """Nothing is ever paused."""

    # -- the connection's thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        timeout = httpx.Timeout(600.0, connect=10.0)
        self._client = httpx.AsyncClient(base_url=self.url, headers=self._headers, timeout=timeout)
        self._loop.create_task(self._watch_server())
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._hang_up())
            self._loop.close()

    async def _hang_up(self) -> None:
        """End what is on its way; each request's own task tells its stream."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for request_id in list(self._open):
            self._cancel(request_id)
        await self._client.aclose()

    async def _watch_server(self) -> None:
        while True:
            try:
                answer = await self._client.get("/metrics", timeout=5.0)
                self._figures = read_figures(answer.text) if answer.status_code == 200 else RemoteFigures()
                self._failure = None
            except httpx.HTTPError as error:
                self._failure = f"the server at {self.url} does not answer ({type(error).__name__})"
            self._publish()
            await asyncio.sleep(POLL_S)

    def _publish(self) -> None:
        # A list first: other threads submit meanwhile.
        record = self._records.next(self._figures, [one.sent for one in list(self._open.values())])
        self.ring.append(record)
        for listener in list(self._listeners):
            try:
                listener(record)
            except Exception:
                log.exception("A listener of step records failed and is dropped")
                self._listeners.remove(listener)

    def _send(self, request_id: int, route: str, body: dict[str, Any]) -> None:
        if (one := self._open.get(request_id)) is not None:
            self._records.arrived(one.sent)
            one.task = self._loop.create_task(self._answer(one, route, body))

    async def _answer(self, one: _Open, route: str, body: dict[str, Any]) -> None:
        reason, error = "error", "the server ended its answer in the middle"
        try:
            async for piece in ask(self._client, route, body):
                reason, error = self._take(one, piece, reason), error
        except asyncio.CancelledError:
            reason, error = "abort", ""
        except (RemoteFailure, httpx.HTTPError, ValueError) as failure:
            reason, error = "error", str(failure) or type(failure).__name__
        self._end(one, reason, error if reason == "error" else None)

    def _take(self, one: _Open, piece: Piece, reason: str) -> str:
        if piece.text:
            one.sent.got_token(time.monotonic())
            one.stream.push(one.pieces.add(piece.text))
        one.usage = piece.usage or one.usage
        return piece.finish_reason or reason

    def _cancel(self, request_id: int) -> None:
        one = self._open.get(request_id)
        if one is None:
            return
        if one.task is None:
            self._end(one, "abort", None)
        else:
            one.task.cancel()

    def _end(self, one: _Open, reason: str, error: str | None) -> None:
        if self._open.pop(one.stream.request_id, None) is None:
            return
        sent, usage = one.sent, one.usage
        sent.num_output_tokens = usage.get("completion_tokens", sent.num_output_tokens)
        metrics = RequestMetrics(
            num_prompt_tokens=usage.get("prompt_tokens", sent.num_prompt_tokens),
            num_output_tokens=sent.num_output_tokens,
            num_cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            num_preemptions=0,
            e2e_s=time.monotonic() - sent.arrival_s,
            ttft_s=sent.ttft_s,
            decode_s=sent.decode_s,
        )
        self._records.ended(sent, reason, metrics.e2e_s)
        one.stream.end(reason, error, metrics)
