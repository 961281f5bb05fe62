"""Reading HTTP answers in tests: errors in OpenAI's form, events of a stream."""

from __future__ import annotations

import json
from typing import Any

import httpx

KEY = "s3cret-key"


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


def events_of(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) if line.startswith("{") else line for line in lines]
