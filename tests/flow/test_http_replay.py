"""`--replay`: the routes over the recorded run that ships with the project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from engine.cli import CannotStart, Options
from engine.launch import launch
from engine.serving.http_app import HttpOptions, build_http_app
from tests.http_server import serving

ROOT = Path(__file__).parents[2]
TRACE = next((ROOT / "assets").glob("*.jsonl*"))


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    launched = launch(Options(replay=TRACE))
    app = build_http_app(launched.service, launched.tokenizer, HttpOptions(launched.model_name))
    launched.service.start()
    with serving(app) as url, httpx.Client(base_url=url) as client:
        yield client
    launched.close()


def test_a_recorded_run_can_be_looked_at(client: httpx.Client) -> None:
    assert client.get("/health").status_code == 200
    client.post("/engine/control", json={"seek": 50, "paused": True})
    state = client.get("/engine/state").json()
    assert state["paused"] is True
    assert state["replay"]["num_steps"] >= 50
    steps = client.get("/engine/steps").json()["steps"]
    assert len(steps) == 50
    assert "vllm:generation_tokens_total" in client.get("/metrics").text
    assert client.get("/v1/models").json()["data"][0]["id"]
    assert client.get("/engine/trace").text.count("\n") >= 50


def test_nobody_answers_and_it_is_said_why(client: httpx.Client) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/completions", {"prompt": [5], "stream": True}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 503
        assert "--replay" in answer.json()["error"]["message"]
    refused = client.post("/engine/control", json={"policy": "static"})
    assert refused.status_code == 400


def test_a_file_that_is_no_trace_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('{"a": 1}\n')
    with pytest.raises(CannotStart, match="--replay") as caught:
        launch(Options(replay=file))
    assert "\n" not in str(caught.value)
