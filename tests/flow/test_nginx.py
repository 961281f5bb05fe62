"""Behind Debian's nginx, with the server block of notes/deploy.md: answers stream, and the page's feed gets through."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from engine.serving.http_app import HttpOptions, build_http_app
from tests.http_server import serving, wait_until
from tests.tiny_engine import tiny_service
from viz import panels

ROOT = Path(__file__).resolve().parents[2]
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed here")


class CountedRunner:
    """Runs a step for each permit, and waits for the next."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.permits = threading.Semaphore(0)
        self.reset_pool = real.reset_pool

    def run(self, plan: Any) -> Any:
        self.permits.acquire(timeout=30)
        return self.real.run(plan)

    def allow(self, count: int) -> None:
        self.permits.release(count)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def server_block(port: int, upstream: str) -> str:
    """The block of the note, with this test's ports."""
    found = re.search(r"```nginx\n(.*?)```", (ROOT / "notes" / "deploy.md").read_text(), re.DOTALL)
    assert found
    block = found[1].replace("listen 8080;", f"listen 127.0.0.1:{port};")
    assert "http://127.0.0.1:7860" in block
    return block.replace("http://127.0.0.1:7860", upstream)


@pytest.fixture(scope="module")
def behind(rand: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, CountedRunner]]:
    """(nginx's address, the runner that waits for permits)."""
    folder = tmp_path_factory.mktemp("nginx")
    runners: list[CountedRunner] = []

    def counted(real: Any) -> CountedRunner:
        runners.append(CountedRunner(real))
        return runners[0]

    service = tiny_service(rand, counted)
    app = build_http_app(service, service.tokenizer, HttpOptions("tiny"))
    panels.register_routes(app, service)
    service.start()
    port = free_port()
    with serving(app) as upstream:
        (folder / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
            f"events {{}} http {{ access_log off;\n"
            f"client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n"
            f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
            f"{server_block(port, upstream)} }}\n"
        )
        assert NGINX is not None
        process = subprocess.Popen([NGINX, "-c", str(folder / "nginx.conf"), "-p", str(folder)])
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until(lambda: _answers(url))
            yield url, runners[0]
        finally:
            process.terminate()
            process.wait(10)
            service.stop()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def test_an_answer_streams_and_is_not_kept_until_it_is_whole(behind: tuple[str, CountedRunner]):
    url, runner = behind
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 20, "stream": True, "ignore_eos": True, "temperature": 0}
    runner.allow(3)  # then the engine stands still: what comes until then was let through as it was made
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as response:
        lines = response.iter_lines()
        first = next(line for line in lines if line.startswith("data: "))
        assert json.loads(first[6:])["choices"]
        runner.allow(17)
        rest = [line for line in lines if line.startswith("data: ")]
    assert rest[-1] == "data: [DONE]"


def test_the_feeds_websocket_gets_through(behind: tuple[str, CountedRunner]):
    url, _ = behind
    with connect(url.replace("http", "ws") + "/ui/feed", origin=url) as socket_:  # type: ignore[arg-type]
        socket_.send("{}")
        assert json.loads(socket_.recv(timeout=20))["epoch"]


def test_a_page_of_another_origin_still_gets_no_feed(behind: tuple[str, CountedRunner]):
    url, _ = behind
    with (
        pytest.raises(InvalidStatus),
        connect(url.replace("http", "ws") + "/ui/feed", origin="http://elsewhere.example"),
    ):  # type: ignore[arg-type]
        pass


def test_hanging_up_behind_nginx_aborts(behind: tuple[str, CountedRunner]):
    url, runner = behind
    runner.allow(10_000)
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 200, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as response:
        next(response.iter_lines())
    wait_until(lambda: httpx.get(f"{url}/engine/state").json()["num_active_blocks"] == 0)
