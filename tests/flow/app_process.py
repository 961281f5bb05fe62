"""`python app.py` as a child process, on a free port."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]


class App:
    """The process, its port, and the lines it has logged so far."""

    def __init__(self, *arguments: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        command = [sys.executable, "app.py", "--port", self.url.rpartition(":")[2], *arguments]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self._environment()
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _environment(self) -> dict[str, str]:
        return os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TINY_VLLM_API_KEY": ""}

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def health(self) -> int:
        """The status of /health; 0 while the port is closed."""
        assert self.process.poll() is None, "\n".join(self.lines)
        try:
            return httpx.get(f"{self.url}/health").status_code
        except httpx.TransportError:
            return 0
