"""Who may call what: the API key, and requests that a browser sends for somebody else's page.

Owns both checks and the echo of `X-Request-Id`. Never knows what a route does.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.serving.errors import ApiError

_PROTECTED = ("/v1/", "/engine/")
_MAX_REQUEST_ID_BYTES = 200


class RequireApiKey:
    """ASGI middleware: `/v1/*` and `/engine/*` need `Authorization: Bearer KEY`; all else is left alone."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app, self._api_key = app, api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's entry."""
        if scope["type"] != "lifespan" and scope["path"].startswith(_PROTECTED) and not self._is_allowed(scope):
            error = ApiError(
                401,
                "this server needs its API key: send the header 'Authorization: Bearer KEY'",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        scheme, _, key = _header(scope["headers"], b"authorization").partition(b" ")
        # compare_digest takes the same time wherever the keys differ, so that nobody can guess byte by byte.
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._api_key)


class EchoRequestId:
    """ASGI middleware: the client's own `X-Request-Id` comes back on the response; the engine never sees it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's entry."""
        request_id = _header(scope["headers"], b"x-request-id") if scope["type"] == "http" else b""
        if not request_id or len(request_id) > _MAX_REQUEST_ID_BYTES:
            await self._app(scope, receive, send)
            return

        async def echo(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id)]}
            await send(message)

        await self._app(scope, receive, echo)


def refuse_cross_site(request: Request) -> None:
    """Raise a 403 when a browser sent `request` for a page of another origin.

    Browsers say so in `Sec-Fetch-Site`, older ones in `Origin` alone; other clients send neither.
    """
    site = request.headers.get("sec-fetch-site", "none")
    origin = request.headers.get("origin")
    is_foreign_origin = origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")
    if site not in ("none", "same-origin") or is_foreign_origin:
        raise ApiError(403, "another site's page may not do this; use the playground's own page or a client without")


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    return next((value for key, value in headers if key == name), b"")
