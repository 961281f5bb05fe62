"""Who may do what and how much of it, steps and streams over HTTP; on a service without an engine."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from tests.unit.serving.fake_service import FakeService
from tests.unit.serving.http_answers import KEY, complete, error, events_of

# -- size and time -----------------------------------------------------------------------------------------------


def test_large_bodies_are_413_with_and_without_a_length(client: httpx.Client, service: FakeService) -> None:
    kind = {"Content-Type": "application/json"}
    error(client.post("/v1/completions", content=b"x" * 10_001, headers=kind), 413)
    error(client.post("/v1/completions", content=(b"x" * 1000 for _ in range(11)), headers=kind), 413)
    assert service.streams == []
    assert complete(client).status_code == 200


def test_a_body_that_does_not_come_is_408(client: httpx.Client) -> None:
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
