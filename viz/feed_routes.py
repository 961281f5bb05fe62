"""The feed's doors: a WebSocket at /ui/feed, and GET /ui/steps where no WebSocket gets through.

Owns connections: who may open one, and how often each is answered. Never knows what is in an
answer. A WebSocket does not count against the six connections that a browser opens to one host, so many tabs of one
browser go on updating while they chat.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request, Response, WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from viz.feed import BURST_BYTES, BYTES_PER_S, UPDATES_PER_S, Feed

MAX_ASK_CHARS = 400
TICK_S = 0.1


class News:
    """One shared look at the engine for all connections that wait, ten times a second while any does."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._event = asyncio.Event()
        self._num_waiting = 0
        self._task: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Until the next look at the engine that might have found something."""
        self._num_waiting += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            await self._event.wait()
        finally:
            self._num_waiting -= 1

    async def _look(self) -> None:
        while self._num_waiting:
            await asyncio.sleep(TICK_S)
            self._event.set()
            self._event = asyncio.Event()


class Allowance:
    """How many bytes a connection may be sent now: a bucket that fills at `BYTES_PER_S` up to `BURST_BYTES`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at = clock()
        self._bytes = float(BURST_BYTES)

    def spend(self, num_bytes: int) -> None:
        """Take out what was sent."""
        self._refill()
        self._bytes -= num_bytes

    @property
    def is_used_up(self) -> bool:
        """Whether the page has to wait before it may be sent more."""
        self._refill()
        return self._bytes < 0

    def _refill(self) -> None:
        now = self._clock()
        self._bytes = min(BURST_BYTES, self._bytes + (now - self._at) * BYTES_PER_S)
        self._at = now


class Connection:
    """One page's WebSocket: asked, it answers once."""

    def __init__(self, websocket: WebSocket, feed: Feed, news: News, clock: Callable[[], float]) -> None:
        self._websocket = websocket
        self._feed = feed
        self._news = news
        self._clock = clock
        self._allowance = Allowance(clock)
        self._ask: dict[str, Any] | None = None
        self._asked = asyncio.Event()
        self._state_seen: str | None = None
        self._was_held_back = False

    async def serve(self) -> None:
        """Until the page goes away."""
        answering = asyncio.create_task(self._answer_forever())
        try:
            while True:
                self._ask = _parse_ask(await self._websocket.receive_text())
                self._asked.set()
        except (WebSocketDisconnect, ValueError, KeyError, RuntimeError):
            pass
        finally:
            answering.cancel()
            with contextlib.suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
                await answering
            if self._websocket.application_state is WebSocketState.CONNECTED:
                with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                    await self._websocket.close(code=1003)

    async def _answer_forever(self) -> None:
        sent_at = 0.0
        while True:
            await self._asked.wait()
            await asyncio.sleep(max(0.0, sent_at + 1 / UPDATES_PER_S - self._clock()))
            text = self._next_text()
            if text is None:
                await self._news.wait()
                continue
            self._asked.clear()
            sent_at = self._clock()
            self._allowance.spend(len(text))
            await self._websocket.send_text(text)

    def _next_text(self) -> str | None:
        ask = self._ask or {}
        since, epoch = ask.get("since"), ask.get("epoch")
        if self._allowance.is_used_up:
            self._was_held_back = True
            return None
        if self._was_held_back and since is not None and self._feed.is_far_behind(since, epoch):
            self._was_held_back = False
            return self._feed.jump(since).text
        answer, self._state_seen = self._feed.answer(since, epoch, self._state_seen)
        return answer.text if answer.has_news else None


def register_feed(app: FastAPI, feed: Feed, clock: Callable[[], float] = time.monotonic) -> None:
    """Add /ui/feed, /ui/steps and /ui/runs/{id} to `app`."""
    news = News(feed)

    @app.websocket("/ui/feed")
    async def feed_socket(websocket: WebSocket) -> None:
        if not is_same_origin(websocket.headers.get("origin"), websocket.headers.get("host")):
            await websocket.close(code=1008)
            return
        await websocket.accept()
        await Connection(websocket, feed, news, clock).serve()

    @app.get("/ui/steps", include_in_schema=False)
    async def steps(request: Request, since: int | None = None, epoch: str | None = None) -> Response:
        answer, _ = feed.answer(since, epoch)
        return _json(request, answer.text)

    @app.get("/ui/runs/{run_id}", include_in_schema=False)
    async def run(request: Request, run_id: str) -> Response:
        text = feed.run(run_id)
        if text is None:
            return Response("this run is no longer kept; run it again", status_code=404, media_type="text/plain")
        return _json(request, text)


def is_same_origin(origin: str | None, host: str | None) -> bool:
    """Whether a page of this very server opens the socket; a program without a page (no Origin) may, too."""
    return origin is None or urlsplit(origin).netloc.lower() == (host or "").lower()


def _parse_ask(text: str) -> dict[str, Any]:
    if len(text) > MAX_ASK_CHARS:
        raise ValueError("the question is too long")
    ask = json.loads(text)
    if not isinstance(ask, dict):
        raise ValueError("the question must be an object")
    since, epoch = ask.get("since"), ask.get("epoch")
    if not (since is None or isinstance(since, int)) or not (epoch is None or isinstance(epoch, str)):
        raise ValueError("since must be a step number, epoch a string")
    return {"since": since, "epoch": epoch}


def _json(request: Request, text: str) -> Response:
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    body = text.encode()
    if len(body) > 1000 and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, compresslevel=4)
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type="application/json", headers=headers)
