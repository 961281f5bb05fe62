"""`python app.py` as a process: what the port answers while it loads, the line when it is ready, how it ends."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from engine.cli import CannotStart, Options
from engine.launch import launch
from engine.serving.http_server import listen
from tests.flow.app_process import App
from tests.http_server import wait_until
from tests.tiny_models import rand


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand(tmp_path_factory.mktemp("rand"))


@pytest.fixture
def app(folder: Path) -> Iterator[App]:
    app = App("--model", str(folder), "--dtype", "float32", "--served-model-name", "tiny", "--check-invariants")
    yield app
    app.process.kill()
    app.process.wait()


def test_it_loads_serves_and_ends_in_order(app: App) -> None:
    seen: list[int] = []

    def is_ready() -> bool:
        seen.append(app.health())
        return seen[-1] == 200

    wait_until(is_ready, 120)
    assert set(seen) <= {0, 503, 200}
    assert 503 in seen  # the port answers before the model is there
    wait_until(lambda: any("Ready" in line for line in app.lines))
    assert sum("Ready" in line for line in app.lines) == 1
    assert httpx.get(app.url + "/").headers["content-type"].startswith("text/html")
    assert httpx.get(app.url + "/v1/models").json()["data"][0]["id"] == "tiny"
    assert httpx.get(app.url + "/v1/nope").json()["error"]["code"] == "unknown_route"
    assert httpx.get(app.url + "/v1/completions").status_code == 405

    httpx.post(app.url + "/engine/control", json={"step_delay_s": 0.05})
    body = {"prompt": "a private prompt", "max_tokens": 200, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", app.url + "/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        app.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert '"finish_reason":"abort"' in rest[-2]
    assert rest[-1] == "data: [DONE]"
    assert app.process.wait(30) == 0
    assert not any("private" in line for line in app.lines)
    assert not any("Traceback" in line for line in app.lines)


def test_ctrl_c_while_it_loads_ends_it_at_once(app: App) -> None:
    wait_until(lambda: app.health() == 503, 60)
    app.process.send_signal(signal.SIGINT)
    assert app.process.wait(30) == 0


def test_a_model_that_is_not_there_is_one_line_and_exit_code_2() -> None:
    app = App("--model", "no/such/folder")
    assert app.process.wait(60) == 2
    wait_until(lambda: bool(app.lines))
    errors = [line for line in app.lines if "error" in line]
    assert len(errors) == 1
    assert "no/such/folder" in errors[0]
    assert not any("Traceback" in line for line in app.lines)


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(CannotStart, match="--port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_answers_do_not_wait_for_acknowledgements() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # asyncio turns Nagle's algorithm off for these only


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(model="./nowhere"), "nowhere"),
        (Options(device="cuda"), "--device cuda"),
        (Options(max_model_len=1_000_000), "--max-model-len"),
        (Options(block_size=1024, num_blocks=9_000_000), "GiB are free"),
    ],
)
def test_what_only_shows_while_loading_is_one_line_too(folder: Path, options: Options, words: str) -> None:
    from dataclasses import replace

    import torch

    if options.device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    chosen = options if options.model != "auto" else replace(options, model=str(folder))
    with pytest.raises(CannotStart, match=words) as caught:
        launch(chosen)
    assert "\n" not in str(caught.value)
