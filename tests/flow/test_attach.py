"""`--attach`: this server in front of another one of its kind, and of servers that break off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse, StreamingResponse

from engine.cli import CannotStart, Options
from engine.launch import Launched, launch
from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving.http_app import HttpOptions, build_http_app
from engine.serving.remote_figures import read_figures
from engine.serving.service import EngineService
from tests.http_server import serving, wait_until
from tests.tiny_engine import serving_tiny
from tests.tiny_models import rand

LLAMA_CPP = """# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 3
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 2
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 77
"""
Pair = tuple[EngineService, Launched, str, str]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """(the other server's service, what is attached to it, the other's URL, the attached one's URL)."""
    with serving_tiny(rand(tmp_path_factory.mktemp("rand"))) as (behind, service):
        attached = launch(Options(attach=behind))
        app = build_http_app(attached.service, attached.tokenizer, HttpOptions(attached.model_name))
        attached.service.start()
        with serving(app) as front:
            yield service, attached, behind, front
        attached.close()


def clients(pair: Pair) -> tuple[openai.OpenAI, openai.OpenAI]:
    front, behind = (openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) for url in (pair[3], pair[2]))
    return front, behind


def test_answers_are_those_of_the_server_behind(pair: Pair) -> None:
    front, behind = clients(pair)
    asked: dict[str, Any] = {"model": "tiny", "prompt": "a prompt", "max_tokens": 12, "temperature": 0, "stop": "zzz"}
    ours, theirs = front.completions.create(**asked), behind.completions.create(**asked)
    assert ours.choices[0].text == theirs.choices[0].text
    assert ours.choices[0].finish_reason == theirs.choices[0].finish_reason
    assert ours.usage is not None
    assert theirs.usage is not None
    assert (ours.usage.prompt_tokens, ours.usage.completion_tokens) == (8, theirs.usage.completion_tokens)
    streamed = "".join(chunk.choices[0].text for chunk in front.completions.create(stream=True, **asked))
    assert streamed == theirs.choices[0].text
    chat: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    whole = [client.chat.completions.create(seed=3, **chat).choices[0].message.content for client in (front, behind)]
    assert whole[0] == whole[1]


def test_the_other_server_s_refusals_are_passed_on(pair: Pair) -> None:
    front, _ = clients(pair)
    with pytest.raises(openai.InternalServerError, match=r"400.*256"):
        front.completions.create(model="tiny", prompt="x" * 400, max_tokens=5)
    with pytest.raises(openai.BadRequestError, match="log-prob"):
        front.completions.create(model="tiny", prompt="x", logprobs=1)
    with pytest.raises(InvalidRequest, match="attached"):
        pair[1].service.control({"policy": "static"})


def test_a_request_that_is_aborted_here_is_aborted_there(pair: Pair) -> None:
    service, attached, _, _ = pair
    service.control({"step_delay_s": 0.02})
    stream = attached.service.submit((5, 6), SamplingParams(max_tokens=200, ignore_eos=True), client="me")[0]
    wait_until(lambda: bool(service.state()["pending_decode"]))
    attached.service.abort_client("me")
    assert stream.result(20).finish_reason == "abort"
    wait_until(lambda: not service.state()["pending_decode"])
    service.control({"step_delay_s": 0.0})


def test_records_tell_of_our_requests_and_of_others(pair: Pair) -> None:
    service, attached, behind, _ = pair
    service.control({"paused": True})
    ours = attached.service.submit((5, 6, 7), SamplingParams(max_tokens=4, ignore_eos=True))[0]
    others = service.submit((8, 9), SamplingParams(max_tokens=4, ignore_eos=True), client="others")[0]
    wait_until(lambda: len(attached.service.state()["pending_prefill"]) == 2)
    assert ours.request_id in attached.service.state()["pending_prefill"]
    service.control({"paused": False})
    metrics = ours.result(20).metrics
    assert metrics is not None
    assert metrics.num_output_tokens == 4
    others.result(20)

    def kinds() -> list[str]:
        events = [event for record in attached.service.steps().records for event in record.events]
        return [event.kind.value for event in events if event.request_id == ours.request_id]

    wait_until(lambda: "finished" in kinds())
    assert kinds() == ["arrived", "first_token", "finished"]
    state = attached.service.state()
    assert state["attached"] == {"url": behind, "has_metrics": True, "mean_ttft_s": state["attached"]["mean_ttft_s"]}
    assert state["num_blocks"] == 64
    assert attached.service.health() is None


def test_figures_of_other_engines() -> None:
    figures = read_figures(LLAMA_CPP)
    assert (figures.num_running, figures.num_waiting, figures.output_tokens) == (3, 2, 77)
    assert figures.kv_usage is None
    sglang = 'sglang:num_running_reqs{model_name="m"} 4.0\nsglang:token_usage 0.5\nsglang:num_queue_reqs 1\n'
    assert (read_figures(sglang).num_running, read_figures(sglang).kv_usage) == (4.0, 0.5)
    for junk in ("", "<html>", "vllm:num_requests_running NaN\n", "a{b=", "\0\0"):
        assert read_figures(junk).num_running is None


@pytest.mark.parametrize(
    ("url", "words"), [("ftp://x", "address"), ("nowhere", "address"), ("http://127.0.0.1:1", "no server answers")]
)
def test_what_cannot_be_attached_is_one_line(url: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    from engine import cli

    try:
        launch(cli.parse(["--attach", url], {}))
    except (CannotStart, SystemExit) as error:
        said = str(error) + capsys.readouterr().err
    assert words in said


def test_a_server_that_breaks_off_is_told_in_words() -> None:
    app = FastAPI()

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"data": [{"id": "broken"}]}

    @app.get("/metrics")
    def metrics() -> PlainTextResponse:
        return PlainTextResponse("no metrics", 404)

    @app.post("/v1/completions")
    def complete() -> StreamingResponse:
        piece = json.dumps({"choices": [{"index": 0, "text": "half"}]})
        return StreamingResponse(iter([f"data: {piece}\n\n"]), media_type="text/event-stream")

    with serving(app) as url:
        attached = launch(Options(attach=url))
        attached.service.start()
        answer = attached.service.submit((5,), SamplingParams())[0].result(20)
        assert (answer.text, answer.finish_reason) == ("half", "error")
        assert answer.error == "the server ended its answer in the middle"
        assert not attached.service.state()["attached"]["has_metrics"]
    wait_until(lambda: attached.service.health() is not None)
    with pytest.raises(Exception, match="does not answer"):
        attached.service.submit((5,), SamplingParams())
    attached.close()


def test_closing_ends_what_is_on_its_way(pair: Pair) -> None:
    service, _, behind, _ = pair
    attached = launch(Options(attach=behind))
    attached.service.start()
    service.control({"paused": True})
    stream = attached.service.submit((5, 6), SamplingParams(max_tokens=4))[0]
    wait_until(lambda: bool(service.state()["pending_prefill"]))
    attached.close()
    assert stream.result(20).finish_reason == "abort"
    wait_until(lambda: service.state()["pending_prefill"] == [])
    service.control({"paused": False})


def test_metrics_of_the_front_count_our_requests(pair: Pair) -> None:
    before = httpx.get(pair[3] + "/metrics").text
    assert "tiny_vllm:requests_arrived_total" in before
