"""The feed's doors: WebSocket and HTTP, origins, static files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.http_server import serving
from tests.unit.viz.recorded import Source, Traffic
from viz import feed_routes, panels
from viz.feed import Feed
from viz.feed_routes import Allowance, Connection, News, is_same_origin


@dataclass
class Server:
    url: str
    source: Source
    feed: Feed
    traffic: Traffic

    def connect(self, **options: Any) -> Any:
        return connect(self.url.replace("http", "ws") + "/ui/feed", **options)

    def step(self) -> int:
        record = self.traffic.step()
        assert record is not None
        self.source.ring.append(record)
        return record.step


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(feed_routes, "UPDATES_PER_S", 500.0)
    monkeypatch.setattr(feed_routes, "TICK_S", 0.005)
    source, app = Source(), FastAPI()
    feed = panels.register_routes(app, source)
    with serving(app) as url:
        yield Server(url, source, feed, Traffic(seed=1, num_requests=500))


def ask(socket: Any, **question: Any) -> dict[str, Any]:
    socket.send(json.dumps(question))
    answer: dict[str, Any] = json.loads(socket.recv(timeout=20))
    return answer


def test_a_socket_answers_each_question_once(server: Server) -> None:
    for _ in range(5):
        server.step()
    with server.connect() as socket:
        first = ask(socket)
        assert [step["s"] for step in first["steps"]] == [1, 2, 3, 4, 5]
        socket.send(json.dumps({"since": 5, "epoch": "one"}))
        with pytest.raises(TimeoutError):
            socket.recv(timeout=0.1)
        server.step()
        server.step()
        answer = json.loads(socket.recv(timeout=20))
        assert answer["base"] is None
        assert answer["steps"][0]["s"] == 6
        server.step()
        with pytest.raises(TimeoutError):  # a page in the background does not ask, and is sent nothing
            socket.recv(timeout=0.1)


def test_many_pages_share_one_encoding(server: Server) -> None:
    with ExitStack() as stack:
        sockets = [stack.enter_context(server.connect()) for _ in range(10)]
        for _ in range(20):
            server.step()
        texts = set()
        for socket in sockets:
            socket.send("{}")
            texts.add(socket.recv(timeout=20))
    assert len(texts) == 1
    assert server.feed.num_encoded == 20


@pytest.mark.parametrize("question", ["x" * 5000, "nonsense", '{"since": "five"}', "[1]", '{"epoch": 5}', "null"])
def test_nonsense_closes_the_socket_and_nothing_else(server: Server, question: str) -> None:
    with server.connect() as socket:
        socket.send(question)
        with pytest.raises(ConnectionClosed):
            socket.recv(timeout=20)
    server.step()
    with server.connect() as socket:
        assert len(ask(socket)["steps"]) == 1


def test_a_page_of_another_server_may_not_listen(server: Server) -> None:
    with pytest.raises(InvalidStatus):
        server.connect(origin="http://evil.example").__enter__()
    with server.connect(origin=server.url) as socket:
        assert ask(socket)["epoch"] == "one"


def test_origins() -> None:
    assert is_same_origin(None, "localhost:7860")
    assert is_same_origin("http://localhost:7860", "localhost:7860")
    assert is_same_origin("https://Some.Space", "some.space")
    assert not is_same_origin("http://localhost:7861", "localhost:7860")
    assert not is_same_origin("null", "localhost:7860")
    assert not is_same_origin("http://evil.example", None)


def test_polling_gives_the_same_answers(server: Server) -> None:
    for _ in range(30):
        server.step()
    first = httpx.get(f"{server.url}/ui/steps").json()
    assert [step["s"] for step in first["steps"]] == list(range(1, 31))
    more = httpx.get(f"{server.url}/ui/steps", params={"since": 28, "epoch": "one"})
    assert [step["s"] for step in more.json()["steps"]] == [29, 30]
    assert more.headers["cache-control"] == "no-store"
    raw = httpx.get(f"{server.url}/ui/steps", headers={"accept-encoding": "gzip"})
    assert raw.headers["content-encoding"] == "gzip"
    assert raw.json() == first
    plain = httpx.get(f"{server.url}/ui/steps", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert len(gzip.compress(plain.content)) < len(plain.content) / 2


def test_runs_are_served_until_they_are_forgotten(server: Server) -> None:
    run_id = server.feed.add_run(Traffic(seed=1, num_requests=3).records())
    answer = httpx.get(f"{server.url}/ui/runs/{run_id}").json()
    assert answer["base"]["step"] == 0
    assert answer["steps"][0]["s"] == 1
    missing = httpx.get(f"{server.url}/ui/runs/nothing")
    assert missing.status_code == 404
    assert "run it again" in missing.text


def test_static_files(server: Server) -> None:
    version = panels.static_version()
    main = httpx.get(f"{server.url}/ui/static/{version}/main.js")
    assert main.headers["content-type"].startswith("text/javascript")
    assert "immutable" in main.headers["cache-control"]
    old = httpx.get(f"{server.url}/ui/static/old/panels/grid.js")
    assert old.status_code == 200
    assert old.headers["cache-control"] == "no-cache"
    assert "plotly.js v" in httpx.get(f"{server.url}/ui/plotly.min.js").text[:200]
    assert httpx.get(f"{server.url}/ui/words.json").json()["wait_short"]["no_slot"] == "no slot"


@pytest.mark.parametrize("path", ["nothing.js", "../panels.py", "%2e%2e/panels.py", "panels", "", "..%2f..%2fapp.py"])
def test_nothing_outside_the_static_folder_is_served(server: Server, path: str) -> None:
    answer = httpx.get(f"{server.url}/ui/static/x/{path}", follow_redirects=True)
    assert answer.status_code == 404


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_an_allowance_fills_again() -> None:
    clock = Clock()
    allowance = Allowance(clock)
    allowance.spend(feed_routes.BURST_BYTES)
    assert not allowance.is_used_up
    allowance.spend(60_001)
    assert allowance.is_used_up
    clock.now += 1.1
    assert not allowance.is_used_up
    clock.now += 1e6
    allowance.spend(feed_routes.BURST_BYTES + 1)
    assert allowance.is_used_up


def test_a_page_that_used_up_its_allowance_skips_to_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viz.feed.MAX_STEPS_AT_ONCE", 10)
    source = Source()
    for record in Traffic(seed=3, num_requests=30).records():
        source.ring.append(record)
    clock = Clock()
    feed = Feed(source)
    connection = Connection(None, feed, News(feed), clock)  # type: ignore[arg-type]
    connection._ask = {"since": 5, "epoch": "one"}
    connection._allowance.spend(feed_routes.BURST_BYTES + 1)
    assert connection._next_text() is None
    clock.now += 1
    while feed.pump() < source.ring.newest:
        pass
    answer = json.loads(connection._next_text() or "")
    assert answer["skipped"] == [6, source.ring.newest]
    assert answer["steps"] == []
    connection._ask = {"since": source.ring.newest, "epoch": "one"}
    assert json.loads(connection._next_text() or "{}").get("skipped") is None
