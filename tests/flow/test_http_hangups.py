"""Clients that go away, do not read, or send half a request: on raw sockets, against the real engine."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.serving.service import EngineService
from tests.http_server import wait_until
from tests.tiny_engine import PacedRunner, serving_tiny
from tests.tiny_models import rand

Server = tuple[str, EngineService, PacedRunner]


@pytest.fixture
def server(rand_folder: Path) -> Iterator[Server]:
    paced: list[PacedRunner] = []

    def wrap(real: Any) -> PacedRunner:
        paced.append(PacedRunner(real))
        return paced[0]

    with serving_tiny(rand_folder, wrap, max_num_seqs=2) as (url, service):
        yield url, service, paced[0]
        paced[0].may_run.set()


@pytest.fixture(scope="module")
def rand_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand(tmp_path_factory.mktemp("rand"))


def send(url: str, body: dict[str, Any], path: str = "/v1/completions") -> socket.socket:
    """A connection on which the request has been sent and nothing read."""
    host, port = url.removeprefix("http://").split(":")
    text = json.dumps({"model": "tiny", "prompt": "abc", "ignore_eos": True, "max_tokens": 200} | body).encode()
    connection = socket.create_connection((host, int(port)))
    connection.sendall(
        b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        % (path.encode(), len(text), text)
    )
    return connection


def ids(service: EngineService) -> set[int]:
    state = service.state()
    return {*state["pending_prefill"], *state["pending_decode"]}


def num_live(service: EngineService) -> int:
    return len(ids(service))


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_while_it_runs_frees_its_blocks(server: Server, stream: bool) -> None:
    url, service, paced = server
    service.control({"step_delay_s": 0.02})
    connection = send(url, {"stream": stream})
    wait_until(lambda: service.state()["num_active_blocks"] > 0 and paced.num_steps > 3)
    connection.close()
    wait_until(lambda: num_live(service) == 0, 5)
    assert service.state()["num_active_blocks"] == 0
    assert paced.num_steps < 190


@pytest.mark.parametrize("stream", [True, False])
def test_hanging_up_while_it_waits_takes_it_out_of_the_queue(server: Server, stream: bool) -> None:
    url, service, _ = server
    service.control({"paused": True})
    connection = send(url, {"stream": stream})
    wait_until(lambda: num_live(service) == 1)
    connection.close()
    wait_until(lambda: num_live(service) == 0, 5)
    service.control({"paused": False})


def test_hanging_up_ends_all_answers_of_a_request(server: Server) -> None:
    url, service, _ = server
    service.control({"step_delay_s": 0.02})
    connection = send(url, {"prompt": ["abc", "def"], "n": 3})
    wait_until(lambda: num_live(service) == 6)
    connection.close()
    wait_until(lambda: num_live(service) == 0, 5)


def test_the_others_go_on_when_one_hangs_up(server: Server) -> None:
    url, service, _ = server
    alone = httpx.post(f"{url}/v1/completions", json={"prompt": "xyz", "max_tokens": 40, "temperature": 0}).json()
    service.control({"step_delay_s": 0.01})
    other = send(url, {"stream": True})
    wait_until(lambda: num_live(service) == 1)
    answer = send(url, {"prompt": "xyz", "max_tokens": 40, "temperature": 0, "ignore_eos": False})
    wait_until(lambda: num_live(service) == 2)
    other.close()
    assert _json_answer(answer)["choices"][0]["text"] == alone["choices"][0]["text"]


def test_a_client_that_never_reads_stalls_nobody(server: Server) -> None:
    url, service, _ = server
    silent = send(url, {"stream": True, "logprobs": 20, "n": 2})
    silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "xyz", "max_tokens": 100, "ignore_eos": True})
    assert answer.json()["usage"]["completion_tokens"] == 100
    wait_until(lambda: num_live(service) == 0)
    silent.close()


def test_half_sent_requests_stop_nobody(server: Server) -> None:
    url, _, _ = server
    host, port = url.removeprefix("http://").split(":")
    half = []
    for number in range(200):
        connection = socket.create_connection((host, int(port)))
        body = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(body[: 30 + number % 20] if number % 2 else body + b"Content-Length: 100\r\n\r\n{")
        half.append(connection)
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "xyz", "max_tokens": 5, "ignore_eos": True})
    assert answer.json()["usage"]["completion_tokens"] == 5
    for connection in half:
        connection.close()
    assert httpx.get(f"{url}/health").status_code == 200


def test_a_head_that_does_not_come_closes_the_connection(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url, _, _ = server
    monkeypatch.setattr("engine.serving.patience.HEAD_TIMEOUT_S", 0.2)
    host, port = url.removeprefix("http://").split(":")
    for said in (b"", b"POST /v1/comp", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /hea"):
        with socket.create_connection((host, int(port))) as connection:
            connection.settimeout(20)
            connection.sendall(said)
            answer = b""
            while piece := connection.recv(4096):
                answer += piece
            assert answer.startswith(b"HTTP/1.1 200") == said.startswith(b"GET")
    service_is_slower = send(url, {"max_tokens": 100, "stream": True})
    server[1].control({"step_delay_s": 0.005})
    data = b""
    while b"[DONE]" not in data:  # an answer may take longer than a head
        data += service_is_slower.recv(4096)


def test_a_stream_keeps_its_order_while_it_is_read_slowly(server: Server) -> None:
    url, _, _ = server
    asked = {"prompt": "abc", "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    whole = httpx.post(f"{url}/v1/completions", json=asked).json()["choices"][0]["text"]
    connection = send(url, asked | {"stream": True})
    data = b""
    while b"[DONE]" not in data:
        data += connection.recv(97)
    lines = [line for line in data.decode().split("\n") if line.strip().startswith("data: {")]
    assert "".join(json.loads(line.strip()[6:])["choices"][0]["text"] for line in lines) == whole


def _json_answer(connection: socket.socket) -> Any:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(65536)
    return json.loads(body)
