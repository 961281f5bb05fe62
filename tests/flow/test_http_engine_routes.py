"""`/engine/*` over a real engine: the state's keys, records that add up, the trace, switches while requests run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.serving.service import EngineService
from tests.http_server import wait_until
from tests.tiny_engine import serving_tiny
from tests.tiny_models import oracle, rand, token_ids

STATE_KEYS = {
    "step", "policy", "kv_layout", "block_size", "num_blocks", "num_free_blocks", "num_cached_blocks",
    "num_active_blocks", "pending_prefill", "pending_decode", "active_decode", "max_num_seqs",
    "max_num_batched_tokens", "max_model_len", "max_queue", "prefix_caching", "internal_fragmentation",
    "external_fragmentation", "num_preemptions", "paused", "draining",
}  # fmt: skip
STEP_KEYS = {"step", "pending_prefill", "pending_decode", "active_prefill", "active_decode", "events", "times"}
Server = tuple[httpx.Client, EngineService]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rand(tmp_path_factory.mktemp("rand"))


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with serving_tiny(folder, max_num_seqs=4) as (url, service), httpx.Client(base_url=url, timeout=60) as client:
        yield client, service


def ask(client: httpx.Client, prompt: str, **more: Any) -> Any:
    body = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "return_token_ids": True} | more
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_state_has_the_contracts_keys(server: Server) -> None:
    client, _ = server
    state = client.get("/engine/state").json()
    assert set(state) >= STATE_KEYS
    assert state["num_free_blocks"] + state["num_cached_blocks"] + state["num_active_blocks"] == state["num_blocks"]


def test_steps_tell_of_every_token(server: Server) -> None:
    client, _ = server
    answers = [ask(client, text) for text in ("first", "the second", "first")]
    told = client.get("/engine/steps").json()
    assert [step["step"] for step in told["steps"]] == list(range(told["oldest"], told["newest"] + 1))
    assert all(set(step) >= STEP_KEYS for step in told["steps"])
    lengths: dict[str, int] = {}
    for step in told["steps"]:
        lengths |= step["outputs"]
    assert sorted(lengths.values()) == sorted(answer["usage"]["completion_tokens"] for answer in answers)
    assert "first" not in json.dumps(told).replace("first_token", "")
    newest = told["newest"]
    again = client.get("/engine/steps", params={"since": newest, "epoch": told["epoch"]}).json()
    assert again["steps"] == []
    assert again["base"] is None


def test_the_trace_is_served_in_both_forms(server: Server) -> None:
    client, _ = server
    ask(client, "a secret prompt")
    jsonl = client.get("/engine/trace")
    lines = [json.loads(line) for line in jsonl.text.splitlines()]
    assert len(lines) == 1 + client.get("/engine/state").json()["step"]
    assert "attachment" in jsonl.headers["content-disposition"]
    perfetto = client.get("/engine/trace", params={"format": "perfetto"})
    assert perfetto.json()["traceEvents"]
    assert "secret" not in jsonl.text + perfetto.text
    wrong = client.get("/engine/trace", params={"format": "xml"})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "format"


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "static"},
        {"policy": "continuous", "decode_selection": "sticky"},
        {"kv_layout": "contiguous"},
        {"block_size": 4, "num_blocks": 100},
        {"prefix_caching": False, "max_num_seqs": 2, "max_num_batched_tokens": 64},
    ],
)
def test_switches_flip_while_requests_run_and_nothing_is_lost(
    server: Server, folder: Path, changes: dict[str, Any]
) -> None:
    client, service = server
    service.control({"step_delay_s": 0.005})
    prompts = [f"prompt number {number}" for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(ask, client, prompt) for prompt in prompts]
        wait_until(lambda: bool(service.state()["pending_decode"]))
        assert client.post("/engine/control", json=changes).status_code == 200
        service.control({"step_delay_s": 0.0})
        told = [answer.result()["choices"][0]["token_ids"] for answer in answers]
    assert told == [oracle(folder, token_ids(prompt), 20) for prompt in prompts]
    state = client.get("/engine/state").json()
    wanted = changes | ({"policy": "mixed"} if changes.get("policy") == "continuous" else {})
    assert {name: state[name] for name in wanted} == wanted
    assert not state["draining"]


def test_pause_step_and_go_on(server: Server, folder: Path) -> None:
    client, service = server
    assert client.post("/engine/control", json={"paused": True}).json()["paused"] is True
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, client, "abc")
        wait_until(lambda: len(service.state()["pending_prefill"]) == 1)
        before = service.state()["step"]
        client.post("/engine/control", json={"step": 3})
        wait_until(lambda: service.state()["step"] == before + 3)
        assert len(service.state()["pending_decode"]) == 1
        client.post("/engine/control", json={"paused": False})
        assert answer.result()["choices"][0]["token_ids"] == oracle(folder, token_ids("abc"), 20)


def test_an_impossible_change_is_400_and_changes_nothing(server: Server) -> None:
    client, _ = server
    before = client.get("/engine/state").json()
    for changes in ({"block_size": 0}, {"num_blocks": 10**9}, {"policy": "static", "max_num_batched_tokens": 1}):
        answer = client.post("/engine/control", json=changes)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]
    assert client.get("/engine/state").json() == before


def test_metrics_count_what_was_asked(server: Server) -> None:
    client, service = server
    usages = [ask(client, text)["usage"] for text in ("a prompt that is long enough to be cached", "other")]
    usages.append(ask(client, "a prompt that is long enough to be cached")["usage"])
    wait_until(lambda: not service.state()["pending_decode"])
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
        if "le" not in sample.labels and "finished_reason" not in sample.labels
    }
    assert found["vllm:prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in usages)
    assert found["vllm:generation_tokens_total"] == sum(usage["completion_tokens"] for usage in usages)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert found["vllm:prompt_tokens_cached_total"] == cached > 0
    assert found["vllm:time_to_first_token_seconds_count"] == 3
    assert found["vllm:num_requests_running"] == found["vllm:num_requests_waiting"] == 0
