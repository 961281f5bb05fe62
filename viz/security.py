"""Headers that keep a page's scripts, pictures and connections on its own server.

Owns the Content-Security-Policy. Never knows what is on the page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOST = re.compile(r"^[A-Za-z0-9.\-]+(:\d+)?$|^\[[0-9A-Fa-f:]+\](:\d+)?$")


def policy(host: str) -> str:
    """The policy for a page that is served as `host`. Gradio runs `js_on_load` through eval, hence 'unsafe-eval'."""
    sockets = f" ws://{host} wss://{host}" if _HOST.match(host) else ""
    parts = [
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        f"connect-src 'self' data: blob:{sockets}",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
    ]
    if "SPACE_ID" not in os.environ:  # a Space is shown in a frame of its hub
        parts.append("frame-ancestors 'self'")
    return "; ".join(parts)


class ContentSecurityPolicy:
    """ASGI middleware that adds the policy to every HTML answer and leaves all else, streams too, untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on; see the class."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        host = next((value.decode("latin-1") for key, value in scope["headers"] if key == b"host"), "")

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_html(message.get("headers", ())):
                headers = [*message["headers"]]
                headers.append((b"content-security-policy", policy(host).encode("latin-1")))
                headers.append((b"x-content-type-options", b"nosniff"))
                headers.append((b"referrer-policy", b"same-origin"))
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_with_policy)


def _is_html(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(key.lower() == b"content-type" and value.startswith(b"text/html") for key, value in headers)
