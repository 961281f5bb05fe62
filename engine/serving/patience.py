"""How long a connection may take to say what it wants.

Owns one timer a connection. uvicorn waits for ever for the rest of a request's head, so that whoever opens connections
and says half a sentence on each could use up the process's file descriptors.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT_S = 20.0


class PatientProtocol(H11Protocol):
    """HTTP/1.1 whose connections are closed when no whole request head has come for `HEAD_TIMEOUT_S`."""

    _deadline_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected: it has to say something."""
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        """Some of a request came; uvicorn stops its own timer at the first byte of it."""
        super().data_received(data)
        if self.transport.get_protocol() is self:  # else it has become a WebSocket
            self._expect_head()

    def on_response_complete(self) -> None:
        """The next request on this connection has its own time; uvicorn's keep-alive timer runs until it begins."""
        self._deadline_s = None
        super().on_response_complete()

    def _expect_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._deadline_s = None
            return
        if self._deadline_s is None:
            self._deadline_s = self.loop.time() + HEAD_TIMEOUT_S
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_at(self._deadline_s, self.timeout_keep_alive_handler)
