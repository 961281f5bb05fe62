"""Listens, loads, serves, and ends in order.

Owns the socket, the signals and the exit code. The port answers at once (`/health` is 503) while `load` runs on a
thread; when it has returned, its app answers. Never knows what is served.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI

from engine.cli import CannotStart
from engine.serving.loading import LoadingGate
from engine.serving.patience import PatientProtocol

log = logging.getLogger(__name__)

GRACE_S = 2
"""How long open connections may take to end once the engine has ended their streams."""


@dataclass(frozen=True)
class Loaded:
    """What `load` made. `close` ends the engine and its streams; it is called on another thread than the server's."""

    app: FastAPI
    close: Callable[[], None]
    summary: str


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, taken before anything is loaded. Raises CannotStart when the port can't be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; else each answer waits 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CannotStart(f"cannot listen on {host}:{port} ({reason}); choose another --port or --host") from None
    return listener


def serve(listener: socket.socket, load: Callable[[], Loaded]) -> None:
    """Serve until SIGTERM or Ctrl-C, then end in order. Raises what `load` raised, if it did."""
    # uvicorn raises the signal again once it has shut down; without a handler that would be the process's end.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: None)
    asyncio.run(_serve(listener, load))


async def _serve(listener: socket.socket, load: Callable[[], Loaded]) -> None:
    gate = LoadingGate()
    config = uvicorn.Config(
        gate,
        http=PatientProtocol,
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=15,
    )
    server = _Server(config, gate)
    loading = asyncio.ensure_future(_load(load, server, gate, listener))
    await server.serve(sockets=[listener])
    await gate.close()
    if loading.done():
        loading.result()


async def _load(load: Callable[[], Loaded], server: _Server, gate: LoadingGate, listener: socket.socket) -> None:
    try:
        loaded = await _on_daemon_thread(load)
        server.close_engine = loaded.close
        await gate.open(loaded.app)
    except Exception:
        server.should_exit = True
        raise
    host, port = listener.getsockname()[:2]
    name = f"[{host}]" if ":" in host else host
    log.info("Ready: %s on http://%s:%d", loaded.summary, name, port)


class _Server(uvicorn.Server):
    """Ends the engine's streams before it waits for connections to close: they end by themselves then."""

    def __init__(self, config: uvicorn.Config, gate: LoadingGate) -> None:
        super().__init__(config)
        self._gate = gate
        self.close_engine: Callable[[], None] = lambda: None

    async def shutdown(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """See uvicorn."""
        log.info("Shutting down")
        await asyncio.to_thread(self.close_engine)
        await super().shutdown(list(sockets or []))


async def _on_daemon_thread(work: Callable[[], Loaded]) -> Loaded:
    """Like `asyncio.to_thread`, but the process can end while `work` is still at it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Loaded] = loop.create_future()

    def settle(result: Loaded | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        elif result is not None:
            done.set_result(result)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as error:
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:  # the server has ended meanwhile
            if result is not None:
                result.close()

    threading.Thread(target=run, name="loading", daemon=True).start()
    return await done
