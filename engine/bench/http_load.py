"""Sends a workload to an OpenAI-compatible server over HTTP, as many people would, and notes when what came back.

Owns one connection a request and the reading of event streams. Keeps no text. Never knows how the figures are used.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from engine.bench.outcomes import Outcome
from engine.serving.workload import Workload, WorkloadRequest

ORDINARY_IDS = range(300, 1000)
"""Token ids that are words or parts of words in the usual vocabularies."""
BYTE_IDS = range(20, 250)
"""For vocabularies that have no more."""


class ServerError(Exception):
    """The server cannot be driven; the words say what it answered."""


@dataclass(frozen=True)
class Server:
    """Where to send to. `vocabulary` are token ids that prompts are made of."""

    url: str
    model: str
    api_key: str | None
    vocabulary: Sequence[int]
    timeout_s: float = 600.0

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


async def find_server(url: str, api_key: str | None = None, model: str | None = None) -> Server:
    """Ask a server for its model and which token ids it takes. Raises ServerError."""
    base = url.rstrip("/").removesuffix("/v1")
    server = Server(base, model or "", api_key, BYTE_IDS)
    async with httpx.AsyncClient(headers=server.headers(), timeout=60) as client:
        try:
            if model is None:
                answer = await client.get(f"{base}/v1/models")
                answer.raise_for_status()
                model = str(answer.json()["data"][0]["id"])
            body = {"model": model, "prompt": [ORDINARY_IDS[-1]], "max_tokens": 1}
            takes_ordinary = (await client.post(f"{base}/v1/completions", json=body)).status_code == 200
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ServerError(f"{base} does not answer as an OpenAI-compatible server ({error})") from None
    return Server(base, model, api_key, ORDINARY_IDS if takes_ordinary else BYTE_IDS)


async def send_all(server: Server, workload: Workload) -> list[Outcome]:
    """Send every request when it is due and return what became of each, in the workload's order."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = httpx.Timeout(server.timeout_s, connect=30.0)
    ended = [asyncio.Event() for _ in workload.requests]
    outcomes = [Outcome(due_s=request.arrival_s or 0.0) for request in workload.requests]
    async with httpx.AsyncClient(headers=server.headers(), limits=limits, timeout=timeout) as client:
        began = time.perf_counter()

        async def live(request: WorkloadRequest) -> None:
            outcome = outcomes[request.index]
            if request.after is not None:
                await ended[request.after].wait()
                outcome.due_s = time.perf_counter() - began + workload.spec.think_s
            await asyncio.sleep(outcome.due_s - (time.perf_counter() - began))
            try:
                await _send(client, server, workload, request, outcome, began)
            finally:
                ended[request.index].set()

        await asyncio.gather(*(live(request) for request in workload.requests))
    return outcomes


async def _send(
    client: httpx.AsyncClient,
    server: Server,
    workload: Workload,
    request: WorkloadRequest,
    outcome: Outcome,
    began: float,
) -> None:
    body = {
        "model": server.model,
        "prompt": list(workload.prompt_token_ids(request, server.vocabulary)),
        "max_tokens": request.num_output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    outcome.sent_s = time.perf_counter() - began
    try:
        async with client.stream("POST", f"{server.url}/v1/completions", json=body) as response:
            if response.status_code != 200:
                outcome.error = f"HTTP {response.status_code}"
                return
            async for event in _events(response):
                _note(event, outcome, time.perf_counter() - began)
    except httpx.HTTPError as error:
        outcome.error = type(error).__name__
    finally:
        outcome.ended_s = time.perf_counter() - began
    if outcome.error is None and outcome.finish_reason is None:
        outcome.error = "stream broke off"


def _note(event: dict[str, Any], outcome: Outcome, now_s: float) -> None:
    if "error" in event:
        outcome.error = "error in stream"
        return
    for choice in event.get("choices") or ():
        if choice.get("text"):
            outcome.piece_times_s.append(now_s)
        outcome.finish_reason = choice.get("finish_reason") or outcome.finish_reason
    usage = event.get("usage")
    if usage:
        outcome.num_prompt_tokens = usage["prompt_tokens"]
        outcome.num_output_tokens = usage["completion_tokens"]


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])
