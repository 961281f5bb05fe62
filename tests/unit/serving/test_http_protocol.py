"""The HTTP form of every route: checks, errors, headers; on a service without an engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.serving.http_app import HttpOptions, build_http_app
from engine.serving.limits import BodyLimits
from tests.http_server import serving
from tests.unit.serving.fake_service import FakeService, FakeTokenizer

KEY = "s3cret-key"
SECRET = "my-private-words"
POSTS = ["/v1/completions", "/v1/chat/completions", "/engine/control"]


# Each server runs for the whole module; the service behind both is new for every test.
_SERVICE = FakeService()


@pytest.fixture
def service() -> FakeService:
    _SERVICE.__dict__.clear()
    _SERVICE.__init__()  # type: ignore[misc]
    return _SERVICE


@pytest.fixture(scope="module")
def open_server() -> Iterator[httpx.Client]:
    yield from running(HttpOptions("fake", limits=BodyLimits(10_000, 20_000, timeout_s=0.3)))


@pytest.fixture(scope="module")
def locked_server() -> Iterator[httpx.Client]:
    yield from running(HttpOptions("fake", api_key=KEY, are_controls_locked=True))


@pytest.fixture
def client(service: FakeService, open_server: httpx.Client) -> httpx.Client:
    return open_server


@pytest.fixture
def locked(service: FakeService, locked_server: httpx.Client) -> httpx.Client:
    return locked_server


def running(options: HttpOptions) -> Iterator[httpx.Client]:
    with (
        serving(build_http_app(_SERVICE, FakeTokenizer(), options)) as url,  # type: ignore[arg-type]
        httpx.Client(base_url=url) as client,
    ):
        yield client


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error object, whose form must be OpenAI's."""
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    answer: dict[str, Any] = body["error"]
    return answer


def complete(client: httpx.Client, **more: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": "hello"} | more)


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b'{"prompt": "\\ud800"}', b"[" * 5000])
def test_a_body_that_is_no_json_object_is_400(client: httpx.Client, path: str, content: bytes) -> None:
    error(client.post(path, content=content, headers={"Content-Type": "application/json"}), 400)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_other_content_types_are_refused(client: httpx.Client, service: FakeService, path: str, kind: str) -> None:
    said = error(client.post(path, content=b'{"prompt": "x"}', headers={"Content-Type": kind}), 400)
    assert "application/json" in said["message"]
    assert service.changes == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", 3),
        ("prompt", {"a": 1}),
        ("prompt", [1, "a"]),
        ("prompt", [True]),
        ("prompt", [1.5]),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("temperature", "hot"),
        ("seed", 2**63),
        ("n", None),
        ("stop", [1]),
        ("stop", {"a": 1}),
        ("stream", "yes"),
        ("stream_options", 3),
        ("logprobs", -1),
        ("model", 3),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(client: httpx.Client, field: str, value: Any) -> None:
    response = complete(client, **{field: value})
    if value is None:
        assert response.status_code == 200
        return
    assert error(response, 400)["param"] == field


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_400(client: httpx.Client, value: str) -> None:
    content = b'{"prompt": "x", "temperature": %s}' % value.encode()
    response = client.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert error(response, 400)["param"] == "temperature"


def test_a_million_wrong_values_cost_one_error(client: httpx.Client) -> None:
    response = complete(client, prompt=[0.5] * 1500)
    assert len(error(response, 400)["message"]) < 300


def test_what_was_typed_is_never_repeated(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    bodies: list[dict[str, Any]] = [
        {"prompt": SECRET, "max_tokens": SECRET},
        {"prompt": SECRET, "stop": [SECRET, 5]},
        {"prompt": [SECRET, 5]},
        {"prompt": SECRET, "echo": True},
        {"prompt": SECRET, "model": SECRET},
    ]
    for body in bodies:
        assert SECRET not in client.post("/v1/completions", json=body).text
    chat = {"messages": [{"role": SECRET, "content": [SECRET]}]}
    assert SECRET not in client.post("/v1/chat/completions", json=chat).text
    assert SECRET not in caplog.text


def test_unknown_model_is_404(client: httpx.Client) -> None:
    assert error(complete(client, model="nope"), 404)["code"] == "model_not_found"
    error(client.get("/v1/models/nope"), 404)


def test_full_queue_is_429_and_leaves_nothing_behind(client: httpx.Client, service: FakeService) -> None:
    service.max_queue = 2
    response = complete(client, prompt=["a", "b", "c"])
    error(response, 429)
    assert response.headers["retry-after"]
    assert all(stream.cancelled for stream in service.streams)


def test_one_bad_prompt_of_several_takes_the_others_back(client: httpx.Client, service: FakeService) -> None:
    error(complete(client, prompt=["a", "", "c"]), 400)
    assert [stream.cancelled for stream in service.streams] == [True]


def test_dead_engine_is_503_everywhere(client: httpx.Client, service: FakeService) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    service.dead = "the engine has died"
    assert error(client.get("/health"), 503)["message"] == "the engine has died"
    error(complete(client), 503)
    error(complete(client, stream=True), 503)


def test_one_failed_request_is_500_and_the_next_is_fine(client: httpx.Client) -> None:
    assert "logits" in error(complete(client, prompt="abE"), 500)["message"]
    assert complete(client).status_code == 200


def test_a_failure_in_a_stream_is_an_event_and_the_stream_ends(client: httpx.Client) -> None:
    events = events_of(complete(client, prompt="abE", stream=True))
    assert [event["choices"][0]["text"] for event in events[:-2]] == ["a", "b"]
    assert events[-2]["error"]["message"]
    assert events[-1] == "[DONE]"


def test_a_bug_in_the_server_gives_nothing_away(
    client: httpx.Client, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    def explode() -> dict[str, Any]:
        raise RuntimeError(SECRET)

    service.state = explode  # type: ignore[method-assign]
    response = client.get("/engine/state")
    error(response, 500)
    assert SECRET not in response.text
    assert "RuntimeError" in caplog.text
    assert "explode" in caplog.text
    assert SECRET not in caplog.text


def events_of(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) if line.startswith("{") else line for line in lines]


# -- paths and methods -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/completions", "POST"),
        ("GET", "/v1/chat/completions", "POST"),
        ("GET", "/engine/control", "POST"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/health", "GET"),
        ("DELETE", "/metrics", "GET"),
        ("PUT", "/engine/state", "GET"),
        ("OPTIONS", "/v1/completions", "POST"),
    ],
)
def test_wrong_methods_are_405_with_allow(client: httpx.Client, method: str, path: str, allow: str) -> None:
    response = client.request(method, path)
    error(response, 405)
    assert allow in response.headers["allow"]


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/embeddings", "/engine/nope", "/engine", "/nope"])
def test_unknown_paths_are_404(client: httpx.Client, path: str) -> None:
    error(client.get(path), 404)
    error(client.post(path, json={}), 404)


def test_the_schema_is_served_and_whole(client: httpx.Client) -> None:
    schema = client.get("/openapi.json").json()
    names = set(schema["components"]["schemas"])
    references = {r.split('"')[0] for r in json.dumps(schema).split("#/components/schemas/")[1:]}
    assert references <= names
    assert {"/v1/completions", "/v1/chat/completions", "/engine/control", "/health"} <= set(schema["paths"])


# -- size and time -----------------------------------------------------------------------------------------------


def test_large_bodies_are_413_with_and_without_a_length(client: httpx.Client, service: FakeService) -> None:
    kind = {"Content-Type": "application/json"}
    error(client.post("/v1/completions", content=b"x" * 10_001, headers=kind), 413)
    error(client.post("/v1/completions", content=(b"x" * 1000 for _ in range(11)), headers=kind), 413)
    assert service.streams == []
    assert complete(client).status_code == 200


def test_a_body_that_does_not_come_is_408(client: httpx.Client) -> None:
    import socket

    host, port = str(client.base_url).removeprefix("http://").rstrip("/").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 408")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "timeout_error"


# -- who may -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", f"Basic {KEY}", KEY, f"Bearer {KEY}x", "Bearer ü"]
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/nope", "/engine/state", "/engine/steps"])
def test_without_the_key_it_is_401(locked: httpx.Client, path: str, header: str | None) -> None:
    response = locked.get(path, headers={"Authorization": header.encode()} if header is not None else {})
    error(response, 401)
    assert response.headers["www-authenticate"] == "Bearer"


def test_with_the_key_everything_answers(locked: httpx.Client) -> None:
    for header in (f"Bearer {KEY}", f"bearer {KEY}"):
        assert locked.get("/v1/models", headers={"Authorization": header}).status_code == 200
    assert locked.get("/health").status_code == 200
    assert locked.get("/metrics").status_code == 200


def test_locked_controls_are_403(locked: httpx.Client, service: FakeService) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    said = error(locked.post("/engine/control", json={"paused": True}, headers=headers), 403)
    assert said["code"] == "controls_locked"
    assert service.changes == []


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_sites_cannot_control(client: httpx.Client, service: FakeService, headers: dict[str, str]) -> None:
    error(client.post("/engine/control", json={"paused": True}, headers=headers), 403)
    assert service.changes == []


def test_the_own_page_and_plain_clients_can_control(client: httpx.Client, service: FakeService) -> None:
    own = {"Origin": str(client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    for headers in ({}, own):
        assert client.post("/engine/control", json={"paused": True}, headers=headers).json()["paused"] is True
    assert service.changes == [{"paused": True}] * 2


@pytest.mark.parametrize(
    "changes", [{"polic": "static"}, {"policy": "fast"}, {"paused": 1}, {"block_size": "8"}, {"step": 0}, {"step": 1.5}]
)
def test_wrong_controls_are_400(client: httpx.Client, service: FakeService, changes: dict[str, Any]) -> None:
    assert error(client.post("/engine/control", json=changes), 400)["param"] == next(iter(changes))
    assert service.changes == []


def test_the_request_id_comes_back(client: httpx.Client) -> None:
    for header in ("X-Request-Id", "x-request-id"):
        assert client.get("/v1/models", headers={header: "abc-1"}).headers["x-request-id"] == "abc-1"
    assert complete(client, prompt="").headers.get("x-request-id") is None
    assert client.get("/nope", headers={"X-Request-Id": "e"}).headers["x-request-id"] == "e"


def test_the_same_request_id_twice_is_two_requests(client: httpx.Client) -> None:
    answers = [
        client.post("/v1/completions", json={"prompt": text}, headers={"X-Request-Id": "same"}).json()
        for text in ("one", "two")
    ]
    assert [answer["choices"][0]["text"] for answer in answers] == ["one", "two"]
    assert answers[0]["id"] != answers[1]["id"]


# -- steps -------------------------------------------------------------------------------------------------------


def test_steps_since(client: httpx.Client, service: FakeService) -> None:
    service.record_steps(200)
    whole = client.get("/engine/steps").json()
    assert (whole["epoch"], whole["oldest"], whole["newest"]) == ("e1", 1, 200)
    assert [step["step"] for step in whole["steps"]] == list(range(1, 201))
    assert whole["base"]["step"] == 0
    newer = client.get("/engine/steps", params={"since": 198, "epoch": "e1"}).json()
    assert newer["base"] is None
    assert [step["step"] for step in newer["steps"]] == [199, 200]
    assert client.get("/engine/steps", params={"since": 198, "epoch": "old"}).json()["base"] is not None
    assert len(client.get("/engine/steps", params={"since": 100, "limit": 7}).json()["steps"]) == 7


@pytest.mark.parametrize("since", ["x", "-1", "1.5", "9" * 50, "٣"])
def test_a_wrong_cursor_is_400(client: httpx.Client, since: str) -> None:
    assert error(client.get("/engine/steps", params={"since": since}), 400)["param"] == "since"


def test_requests_are_counted_by_route_and_class_of_status(client: httpx.Client) -> None:
    for path in ("/v1/models", "/v1/nope", "/nope/what-somebody-typed"):
        client.get(path)
    complete(client, prompt="")
    text = client.get("/metrics").text
    for labels in (
        'handler="/v1/models",method="GET",status="2xx"',
        'handler="other",method="GET",status="4xx"',
        'handler="/v1/completions",method="POST",status="4xx"',
    ):
        assert f"http_requests_total{{{labels}}}" in text
    assert "somebody" not in text


# -- streams -----------------------------------------------------------------------------------------------------


def test_streams_of_several_answers_interleave(client: httpx.Client, service: FakeService) -> None:
    service.token_s = 0.002
    events = events_of(complete(client, prompt="abcdefgh", n=2, stream=True))
    order = [event["choices"][0]["index"] for event in events if event != "[DONE]"]
    assert order != sorted(order)
    for index in (0, 1):
        mine = [e["choices"][0] for e in events if e != "[DONE]" and e["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in mine) == "abcdefgh"
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["stop"]


def test_token_ids_in_a_stream(client: httpx.Client) -> None:
    events = events_of(complete(client, prompt="abc", stream=True, return_token_ids=True))
    choices = [event["choices"][0] for event in events if event != "[DONE]"]
    assert [token for choice in choices for token in choice["token_ids"]] == [97, 98, 99]
    assert [choice.get("prompt_token_ids") for choice in choices] == [[97, 98, 99]] + [None] * (len(choices) - 1)


def test_text_offsets_run_on_in_a_stream(client: httpx.Client) -> None:
    events = events_of(complete(client, prompt="abc", stream=True, logprobs=0))
    offsets = [
        o
        for e in events
        if e != "[DONE]" and e["choices"][0]["logprobs"]
        for o in e["choices"][0]["logprobs"]["text_offset"]
    ]
    assert offsets == [0, 1, 2]
