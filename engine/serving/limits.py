"""What a request may cost before it is understood: its size and the time it takes to arrive.

Owns both limits, for requests with a length and for chunked ones. Never looks into a body.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.serving.errors import ApiError

_DRAIN_FACTOR = 16
_DRAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`max_bytes` holds for the API's routes, `max_page_bytes` for all others (the page's uploads)."""

    max_bytes: int = 4 * 1024 * 1024
    max_page_bytes: int = 32 * 1024 * 1024
    timeout_s: float = 30.0

    def for_path(self, path: str) -> int:
        """The most bytes that a request to `path` may carry."""
        return self.max_bytes if path.startswith(("/v1/", "/engine/")) else self.max_page_bytes


class LimitBodies:
    """ASGI middleware that ends a request whose body is too large (413) or does not arrive (408)."""

    def __init__(self, app: ASGIApp, limits: BodyLimits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's entry."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _BoundedBody(receive, self._limits.for_path(scope["path"]), self._limits.timeout_s)
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > body.max_bytes:
            await body.drain()
            await body.too_large().response()(scope, receive, send)
            return
        await self._app(scope, body.receive, send)


class _BoundedBody:
    def __init__(self, receive: Receive, max_bytes: int, timeout_s: float) -> None:
        self._receive, self.max_bytes = receive, max_bytes
        self._num_bytes = 0
        self._is_complete = False
        self._timeout_s = timeout_s
        self._deadline: float | None = None

    async def receive(self) -> Message:
        """The next message; once the body is complete, exactly what the server says (a disconnect, then)."""
        if self._is_complete:
            return await self._receive()
        loop = asyncio.get_running_loop()
        self._deadline = self._deadline or loop.time() + self._timeout_s
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(
                408,
                f"the request's body did not arrive within {self._timeout_s:g} s; send it again in one go",
                headers={"Connection": "close"},
            ) from None
        if message["type"] == "http.request":
            self._num_bytes += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
            if self._num_bytes > self.max_bytes:
                await self.drain()
                raise self.too_large()
        return message

    async def drain(self) -> None:
        """Read on for a moment: a client that is still sending would miss an answer that closes the connection."""
        num_drained = 0
        try:
            async with asyncio.timeout(_DRAIN_S):
                while not self._is_complete and num_drained < _DRAIN_FACTOR * self.max_bytes:
                    message = await self._receive()
                    num_drained += len(message.get("body", b""))
                    self._is_complete = not message.get("more_body", False)
        except TimeoutError:
            pass

    def too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the request's body is larger than {self.max_bytes:,} bytes; send a shorter prompt or fewer at once",
            headers={"Connection": "close"},
        )
