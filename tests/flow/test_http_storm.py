"""A short storm: every answer that arrives is right, and nothing is left when it is over."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import httpx

from tests.flow.storm import known_answers, storm
from tests.http_server import wait_until
from tests.tiny_engine import serving_tiny
from tests.tiny_models import rand


def test_a_storm_passes(tmp_path: Path) -> None:
    folder = rand(tmp_path / "rand")
    known = known_answers(folder)
    with serving_tiny(folder, max_queue=32) as (url, service):
        num_threads = threading.active_count()
        tally = asyncio.run(storm(url, known, lambda tally: tally.counts.total() < 400))
        assert tally.wrong == []
        assert tally.counts["checked"] > 50
        assert tally.counts["hang-up"] > 20
        wait_until(lambda: not service.state()["pending_prefill"] and not service.state()["pending_decode"])
        state = httpx.get(f"{url}/engine/state").json()
        assert state["num_active_blocks"] == 0
        assert state["num_free_blocks"] + state["num_cached_blocks"] == state["num_blocks"]
        assert threading.active_count() <= num_threads + 40  # worker threads of the web framework


def test_two_hundred_at_once_are_answered_or_refused(tmp_path: Path) -> None:
    folder = rand(tmp_path / "rand")
    known = known_answers(folder)

    async def all_at_once(url: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=None), timeout=120) as client:
            bodies = [
                {"prompt": k.prompt, "max_tokens": k.max_tokens, "temperature": 0, "return_token_ids": True}
                for k in (known * 9)[:200]
            ]
            asks = [asyncio.ensure_future(client.post("/v1/completions", json=body)) for body in bodies]
            # The refusals come while nothing runs: nobody waits for the engine to be told no.
            while sum(ask.done() for ask in asks) < 200 - 64:
                await asyncio.sleep(0.01)
            await client.post("/engine/control", json={"paused": False})
            return list(await asyncio.gather(*asks))

    with serving_tiny(folder, max_queue=64) as (url, service):
        service.control({"paused": True})
        answers = asyncio.run(all_at_once(url))
    assert sorted(answer.status_code for answer in answers) == [200] * 64 + [429] * 136
    for answer, k in zip(answers, (known * 9)[:200], strict=True):
        if answer.status_code == 200:
            assert answer.json()["choices"][0]["token_ids"] == k.token_ids
