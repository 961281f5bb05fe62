"""What clients see when something breaks inside: a step, a request, the engine thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from engine.serving.service import EngineService
from tests.http_server import wait_until
from tests.tiny_engine import PacedRunner, serving_tiny
from tests.tiny_models import oracle, poison, token_ids

PROMPTS = ["first of all", "second one", "a third"]
Server = tuple[str, EngineService, PacedRunner]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RAND, but for one token (`!`) that makes its request's logits NaN."""
    return poison(tmp_path_factory.mktemp("poison"))


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    paced: list[PacedRunner] = []

    def wrap(real: Any) -> PacedRunner:
        paced.append(PacedRunner(real))
        return paced[0]

    with serving_tiny(folder, wrap) as (url, service):
        yield url, service, paced[0]


def ask(url: str, prompt: str, **more: Any) -> httpx.Response:
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "return_token_ids": True}
    return httpx.post(f"{url}/v1/completions", json=body | more, timeout=30)


def assert_right(response: httpx.Response, folder: Path, prompt: str) -> None:
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["token_ids"] == oracle(folder, token_ids(prompt), 12)


def all_at_once(server: Server, asks: list[Callable[[], httpx.Response]]) -> list[httpx.Response]:
    """The answers to requests that all arrive before the next step."""
    _, service, _ = server
    service.control({"paused": True})
    with ThreadPoolExecutor(len(asks)) as pool:
        futures = [pool.submit(each) for each in asks]
        wait_until(lambda: len(service.state()["pending_prefill"]) == len(asks))
        service.control({"paused": False})
        return [future.result() for future in futures]


@pytest.mark.parametrize("error", [RuntimeError("boom"), torch.OutOfMemoryError("no room"), MemoryError()])
def test_a_step_that_raises_fails_its_requests_alone(server: Server, folder: Path, error: Exception) -> None:
    url, service, runner = server
    runner.raises = error
    failed = all_at_once(server, [lambda prompt=prompt: ask(url, prompt) for prompt in PROMPTS])  # type: ignore[misc]
    for response in failed:
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "internal_server_error"
        assert "boom" not in response.text
    assert service.state()["num_active_blocks"] == 0
    assert httpx.get(f"{url}/health").status_code == 200
    for prompt in PROMPTS:
        assert_right(ask(url, prompt), folder, prompt)


def test_not_a_number_fails_one_request_and_harms_nobody(server: Server, folder: Path) -> None:
    url, _, _ = server
    asks = [lambda prompt=prompt: ask(url, prompt) for prompt in (*PROMPTS, "bad! one")]  # type: ignore[misc]
    *good, bad = all_at_once(server, asks)
    assert bad.status_code == 500
    for response, prompt in zip(good, PROMPTS, strict=True):
        assert_right(response, folder, prompt)
    for prompt in PROMPTS:  # in blocks that the bad one has used
        assert_right(ask(url, prompt), folder, prompt)


def test_bad_requests_beside_good_ones(server: Server, folder: Path) -> None:
    url, _, _ = server
    bad: list[dict[str, Any]] = [{"top_p": 7}, {"max_tokens": 0}, {"logprobs": 300}, {"temperature": -1}]
    with ThreadPoolExecutor(8) as pool:
        good = [pool.submit(ask, url, prompt) for prompt in PROMPTS]
        refused = [pool.submit(ask, url, "x", **more) for more in bad]
        odd = pool.submit(ask, url, PROMPTS[0], top_k=10**6)
    assert [future.result().status_code for future in refused] == [400] * 4
    for future, prompt in zip([*good, odd], [*PROMPTS, PROMPTS[0]], strict=True):
        assert_right(future.result(), folder, prompt)


def test_a_dead_engine_thread_is_told_to_everyone(server: Server) -> None:
    url, service, runner = server
    runner.raises = SystemExit()
    asks = [lambda prompt=prompt: ask(url, prompt) for prompt in PROMPTS]  # type: ignore[misc]
    *answers, streamed = all_at_once(server, [*asks, lambda: ask(url, "streamed", stream=True)])
    assert [answer.status_code for answer in answers] == [503] * 3
    assert '"error"' in streamed.text
    health = httpx.get(f"{url}/health")
    assert health.status_code == 503
    assert "died" in health.json()["error"]["message"]
    assert ask(url, "x").status_code == 503
    service.restart()
    assert httpx.get(f"{url}/health").status_code == 200
    assert ask(url, "x").status_code == 200


def test_more_than_may_wait_are_refused_and_the_rest_is_served(folder: Path) -> None:
    with serving_tiny(folder, max_queue=4, max_num_seqs=2) as (url, service), ThreadPoolExecutor(12) as pool:
        service.control({"paused": True})
        futures = [pool.submit(ask, url, f"number {number}") for number in range(12)]
        wait_until(lambda: sum(future.done() for future in futures) == 8)
        service.control({"paused": False})
        codes = sorted(future.result().status_code for future in futures)
    assert codes == [200] * 4 + [429] * 8


def test_a_wall_clock_that_steps_back_gives_no_negative_times(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url, _, _ = server
    assert ask(url, PROMPTS[0]).status_code == 200
    before = time.time()
    monkeypatch.setattr(time, "time", lambda: before - 3600)
    assert ask(url, PROMPTS[1]).status_code == 200
    values = [
        (sample.name, sample.value)
        for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
        for sample in family.samples
    ]
    assert ("vllm:e2e_request_latency_seconds_count", 2) in values
    assert all(value >= 0 for _, value in values)
    for step in httpx.get(f"{url}/engine/steps").json()["steps"]:
        assert step["duration_s"] >= 0
        assert all(value >= 0 for value in step["times"].values())


def test_shutting_down_ends_streams_in_order(folder: Path) -> None:
    text: list[str] = []
    with serving_tiny(folder) as (url, service):
        service.control({"step_delay_s": 0.01})
        reader = threading.Thread(
            target=lambda: text.append(ask(url, "abc", stream=True, max_tokens=200, ignore_eos=True).text)
        )
        reader.start()
        wait_until(lambda: bool(service.state()["pending_decode"]))
        service.stop()
        reader.join(10)
    assert '"finish_reason":"abort"' in text[0]
    assert text[0].endswith("data: [DONE]\n\n")
