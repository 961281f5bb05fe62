"""llama.cpp's own server as the other side of a load test, started for it and ended after it.

Owns that process. Never knows what is asked of it.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from engine.bench.http_load import ServerError


@contextmanager
def llama_server(binary: Path, gguf: Path, slots: int, context: int, threads: int) -> Iterator[str]:
    """Its URL while the block runs. `context` is what each of the `slots` gets. Raises ServerError."""
    port = free_port()
    command = [str(binary), "-m", str(gguf), "--host", "127.0.0.1", "--port", str(port), "--parallel", str(slots)]
    command += ["--ctx-size", str(slots * context), "--threads", str(threads), "--no-webui", "--metrics"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ServerError(f"llama-server ended with code {process.returncode} before it answered")
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise ServerError("llama-server did not answer within two minutes")
