"""The door while the house is being furnished: answers `/health` with 503 until the real app is there.

Owns the swap from "loading" to the app. Never knows what takes so long.
"""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.serving.errors import ApiError

_PAGE = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>loading</title><body style="font-family: system-ui, sans-serif; margin: 3rem; color-scheme: light dark">
<h1>The model is loading</h1><p>This page comes back by itself as soon as the server is ready.</p>"""


class LoadingGate:
    """An ASGI app in front of one that does not exist yet. `open` puts the real one behind it.

    The real app's own start-up and shutdown run in one task, as its context managers demand.
    """

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._closing = asyncio.Event()
        self._living: asyncio.Task[None] | None = None

    async def open(self, app: FastAPI) -> None:
        """Start `app` and send it every request from now on. Raises what its start-up raises."""
        is_open = asyncio.Event()
        self._living = asyncio.ensure_future(self._live(app, is_open))
        opening = asyncio.ensure_future(is_open.wait())
        await asyncio.wait({self._living, opening}, return_when=asyncio.FIRST_COMPLETED)
        opening.cancel()
        if self._living.done():
            self._living.result()

    async def close(self) -> None:
        """Shut the real app down, if there is one."""
        self._closing.set()
        if self._living is not None:
            await self._living

    async def _live(self, app: FastAPI, is_open: asyncio.Event) -> None:
        async with app.router.lifespan_context(app):
            self._app = app
            is_open.set()
            await self._closing.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's entry."""
        if self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013})
        elif scope["path"] == "/":
            await HTMLResponse(_PAGE, 503, headers={"Retry-After": "2"})(scope, receive, send)
        else:
            error = ApiError(503, "the model is still loading; try again in a moment", headers={"Retry-After": "2"})
            await error.response()(scope, receive, send)
