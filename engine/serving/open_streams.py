"""The answers under way: each request's stream, and whose it is.

Owns the way from a step's tokens to the streams. Opened by any thread, fed and ended by the engine thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from engine.scheduling.plan import SampledToken
from engine.scheduling.request import Request
from engine.serving.stream import RequestMetrics, RequestStream
from engine.telemetry.record import EventKind, StepRecord
from engine.text.assembler import TextAssembler
from engine.text.tokenizer import Tokenizer


class OpenStreams:
    """`cancel` is what a stream calls, with its request's id, when its reader leaves early."""

    def __init__(self, tokenizer: Tokenizer | None, cancel: Callable[[int], object]) -> None:
        self._tokenizer = tokenizer
        self._cancel = cancel
        self._streams: dict[int, RequestStream] = {}
        self._clients: dict[int, str] = {}
        self._lock = threading.Lock()

    def open(self, request: Request, client: str | None) -> RequestStream:
        """The stream of a new request."""
        params = request.params
        assembler = TextAssembler(self._tokenizer, params.stop, params.min_tokens) if self._tokenizer else None
        stream = RequestStream(
            request.request_id, request.num_prompt_tokens, params, assembler, request.eos_token_ids, self._cancel
        )
        with self._lock:
            self._streams[request.request_id] = stream
            if client is not None:
                self._clients[request.request_id] = client
        return stream

    def ids(self) -> list[int]:
        """Requests whose answer has not ended."""
        with self._lock:
            return list(self._streams)

    def ids_of(self, client: str) -> list[int]:
        """Those of one client."""
        with self._lock:
            return [request_id for request_id, name in self._clients.items() if name == client]

    def publish(self, record: StepRecord, sampled: Mapping[int, SampledToken]) -> None:
        """Give a step's tokens to their streams, and end those whose request has finished."""
        ended = {
            event.request_id: event.details
            for event in record.events
            if event.kind is EventKind.FINISHED and event.request_id is not None
        }
        for request_id, token in sampled.items():
            stream = self._streams.get(request_id)
            if stream is not None and request_id not in ended:
                stream.push(token)
        for request_id, details in ended.items():
            self._end(request_id, details, sampled.get(request_id))

    def _end(self, request_id: int, details: Mapping[str, Any], last_token: SampledToken | None) -> None:
        stream = self._remove(request_id)
        if stream is not None:
            stream.end(details["reason"], details.get("error"), RequestMetrics.from_event(details), last_token)

    def end(self, request_id: int, reason: str, error: str | None) -> None:
        """End the stream of a request that never came to the engine."""
        stream = self._remove(request_id)
        if stream is not None:
            stream.end(reason, error)

    def end_all(self, reason: str, error: str | None) -> None:
        """End all streams: there is no engine any more."""
        for request_id in self.ids():
            self.end(request_id, reason, error)

    def _remove(self, request_id: int) -> RequestStream | None:
        with self._lock:
            self._clients.pop(request_id, None)
            return self._streams.pop(request_id, None)
