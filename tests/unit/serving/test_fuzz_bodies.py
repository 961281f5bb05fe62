"""Bodies that nobody would send: whatever comes, the answer is 200 or a refusal in OpenAI's form, and never a crash."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.serving.http_app import HttpOptions, build_http_app
from engine.serving.openai_types import ChatRequest, CompletionRequest
from tests.unit.serving.fake_service import FakeService, FakeTokenizer

SERVICE = FakeService(max_queue=10**9)
APP = build_http_app(SERVICE, FakeTokenizer(), HttpOptions("m"))  # type: ignore[arg-type]

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=True)
    | st.text(max_size=20)
    | st.sampled_from(["user", "text", "E", "auto", "none", "\ud800", "<|eos|>", "${1}", "{{1}}", "\0"])
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
PROMPTS = st.text(max_size=20) | st.lists(st.text(max_size=5), max_size=3) | st.lists(st.integers(0, 300), max_size=5)
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "x"]), "content": ANYTHING}))
EXTRA = ["echo", "logit_bias", "tools", "best_of", "response_format", "user", "chat_template", "suffix", "unheard_of"]


def body(model: type, required: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies in which each field is what it should be, or anything, or missing."""
    small = st.integers(-2, 5) | st.floats(-1, 3) | st.booleans() | st.none() | ANYTHING
    optional = {name: small for name in (*model.model_fields, *EXTRA) if name not in required}  # type: ignore[attr-defined]
    return st.fixed_dictionaries(required, optional=optional)


def run(work: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
    return asyncio.run(work)


async def send(path: str, content: bytes) -> httpx.Response:
    transport = httpx.ASGITransport(APP)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        return await client.post(path, content=content, headers={"Content-Type": "application/json"})


def check(response: httpx.Response) -> None:
    kind = response.headers["content-type"]
    if kind.startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
    elif response.status_code == 200:
        assert response.json()["choices"]
    else:
        # 500: the fake service fails requests whose prompt holds an E, as the engine fails one with NaN logits.
        assert response.status_code in (400, 404, 500), response.text
        assert response.status_code != 500 or "logits" in response.text
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    SERVICE.streams.clear()


def encoded(value: Any) -> bytes:
    """JSON as a careless client writes it: NaN, lone surrogates and all."""
    return json.dumps(value).encode()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(body(CompletionRequest, {"prompt": PROMPTS | ANYTHING}))
def test_completions_take_anything(value: dict[str, Any]) -> None:
    check(run(send("/v1/completions", encoded(value))))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(body(ChatRequest, {"messages": MESSAGES | ANYTHING}))
def test_chat_takes_anything(value: dict[str, Any]) -> None:
    check(run(send("/v1/chat/completions", encoded(value))))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ANYTHING | st.dictionaries(st.sampled_from(["policy", "paused", "block_size", "step", "seek"]), ANYTHING))
def test_control_takes_anything(value: Any) -> None:
    response = run(send("/engine/control", encoded(value)))
    assert response.status_code in (200, 400), response.text


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.binary(max_size=60))
def test_bytes_are_no_crash(content: bytes) -> None:
    check(run(send("/v1/completions", content)))
