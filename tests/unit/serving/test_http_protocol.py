"""What is refused and how it is said, on a service without an engine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.unit.serving.fake_service import FakeService
from tests.unit.serving.http_answers import complete, error, events_of

SECRET = "my-private-words"
POSTS = ["/v1/completions", "/v1/chat/completions", "/engine/control"]


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
