"""Runs an ASGI app on a loopback port in a thread of the test's process, as uvicorn serves it to people."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from engine.serving.http_server import listen
from engine.serving.patience import PatientProtocol


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The base URL of `app` while the block runs."""
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    config = uvicorn.Config(app, http=PatientProtocol, log_level="error", access_log=False, timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Return once `condition` holds; the timeout is only there so that a broken test ends."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("what was waited for did not happen")
        time.sleep(0.005)
