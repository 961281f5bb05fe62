"""Mixed traffic from many clients at once: good, bad, impatient and meddling ones, each answer checked.

`storm` is one session of it against a running server; `python -m tests.flow.storm --minutes 10 --picture FILE` starts
`app.py` on a tiny model, keeps the storm up, watches the process (blocks, threads, file descriptors, memory) and draws
each over time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.tiny_models import oracle, rand, token_ids

Sample = dict[str, float]
NUM_PROMPTS = 24
SWITCHES: list[dict[str, Any]] = [
    {"policy": "static"},
    {"policy": "decode_first"},
    {"policy": "prefill_first"},
    {"policy": "continuous"},
    {"kv_layout": "contiguous"},
    {"kv_layout": "paged"},
    {"prefix_caching": False},
    {"prefix_caching": True},
    {"block_size": 4, "num_blocks": 96},
    {"block_size": 16, "num_blocks": 64},
    {"max_num_seqs": 3},
    {"max_num_seqs": 8},
    {"max_num_batched_tokens": 24},
    {"max_num_batched_tokens": 512},
    {"decode_selection": "sticky"},
    {"decode_selection": "round_robin"},
]
BAD_BODIES: list[bytes] = [
    b"{",
    b"[]",
    b'{"prompt": ""}',
    b'{"prompt": [999999]}',
    b'{"prompt": "x", "max_tokens": 0}',
    b'{"prompt": "x", "temperature": -1}',
    b'{"prompt": "x", "model": "another"}',
    b'{"prompt": "%s"}' % (b"long " * 200),
    b'{"prompt": "x", "logprobs": 99}',
]


@dataclass(frozen=True)
class Known:
    """A request whose answer is known before it is asked."""

    prompt: str
    max_tokens: int
    token_ids: list[int]


@dataclass
class Tally:
    """What happened, by kind, and everything that should not have."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def known_answers(folder: Path, seed: int = 0) -> list[Known]:
    """Prompts of many lengths, some with the same beginning, and what transformers answers."""
    rng = random.Random(seed)
    beginning = "".join(rng.choices("abcdefgh ", k=40))
    known = []
    for number in range(NUM_PROMPTS):
        own = "".join(rng.choices("ijklmnop ", k=rng.randint(1, 60)))
        prompt = beginning + own if number % 3 == 0 else own
        max_tokens = rng.randint(1, 40)
        known.append(Known(prompt, max_tokens, oracle(folder, token_ids(prompt), max_tokens)))
    return known


async def storm(
    url: str, known: Sequence[Known], goes_on: Callable[[Tally], bool], num_clients: int = 12, seed: int = 0
) -> Tally:
    """Clients that act at random until `goes_on` says no; then all is quiet again."""
    tally = Tally()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=num_clients)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=120) as client:

        async def live(number: int) -> None:
            rng = random.Random(f"{seed}/{number}")
            while goes_on(tally):
                action = rng.choices((_ask, _ask_streamed, _hang_up, _misbehave), weights=(4, 4, 3, 2))[0]
                await action(client, rng.choice(known), rng, tally)

        async def meddle() -> None:
            rng = random.Random(f"{seed}/meddler")
            while goes_on(tally):
                answer = await client.post("/engine/control", json=rng.choice(SWITCHES))
                tally.counts[f"control {answer.status_code}"] += 1
                await asyncio.sleep(rng.random() * 0.4)

        await asyncio.gather(meddle(), *(live(number) for number in range(num_clients)))
    return tally


def _body(known: Known) -> dict[str, Any]:
    return {"prompt": known.prompt, "max_tokens": known.max_tokens, "temperature": 0, "return_token_ids": True}


async def _ask(client: httpx.AsyncClient, known: Known, rng: random.Random, tally: Tally) -> None:
    answer = await client.post("/v1/completions", json=_body(known))
    tally.counts[f"answer {answer.status_code}"] += 1
    if answer.status_code == 200:
        _check(answer.json()["choices"][0]["token_ids"], known, tally)
    elif answer.status_code != 429:
        tally.wrong.append(f"status {answer.status_code}: {answer.text[:200]}")


async def _ask_streamed(client: httpx.AsyncClient, known: Known, rng: random.Random, tally: Tally) -> None:
    told: list[int] = []
    async with client.stream("POST", "/v1/completions", json=_body(known) | {"stream": True}) as answer:
        tally.counts[f"stream {answer.status_code}"] += 1
        if answer.status_code != 200:
            if answer.status_code != 429:
                tally.wrong.append(f"stream status {answer.status_code}")
            return
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    tally.wrong.append(event["error"]["message"])
                    return
                told += event["choices"][0]["token_ids"]
    _check(told, known, tally)


def _check(told: list[int], known: Known, tally: Tally) -> None:
    tally.counts["checked"] += 1
    if told != known.token_ids:
        tally.wrong.append(f"{known.prompt!r}: {told} instead of {known.token_ids}")


async def _hang_up(client: httpx.AsyncClient, known: Known, rng: random.Random, tally: Tally) -> None:
    """Ask on a connection of one's own, and close it at some moment before the answer is whole."""
    body = json.dumps(_body(known) | {"stream": rng.random() < 0.5, "n": rng.choice((1, 1, 3)), "max_tokens": 150})
    _, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    said = f"{head}\r\n\r\n{body}".encode()
    writer.write(said[: rng.randint(1, len(said))] if rng.random() < 0.2 else said)
    await asyncio.sleep(rng.random() * 0.2)
    if rng.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()
    tally.counts["hang-up"] += 1


async def _misbehave(client: httpx.AsyncClient, known: Known, rng: random.Random, tally: Tally) -> None:
    content = rng.choice(BAD_BODIES)
    answer = await client.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    tally.counts[f"bad {answer.status_code}"] += 1
    if answer.status_code not in (400, 404, 429):
        tally.wrong.append(f"a bad request got {answer.status_code}")


# -- the long run ------------------------------------------------------------------------------------------------


def _watch(pid: int, state: dict[str, Any], started: float) -> Sample:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "minutes": (time.monotonic() - started) / 60,
        "memory_mb": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "file_descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "active_blocks": state["num_active_blocks"],
        "requests": len(state["pending_prefill"]) + len(state["pending_decode"]),
    }


def _draw(samples: Sequence[Sample], file: Path) -> None:
    from plotly.subplots import make_subplots

    names = [name for name in samples[0] if name != "minutes"]
    figure = make_subplots(rows=len(names), cols=1, shared_xaxes=True, subplot_titles=names, vertical_spacing=0.05)
    for row, name in enumerate(names, start=1):
        x, y = [s["minutes"] for s in samples], [s[name] for s in samples]
        figure.add_scatter(x=x, y=y, row=row, col=1, showlegend=False, mode="lines")
        figure.update_yaxes(rangemode="tozero", row=row, col=1)
    figure.update_xaxes(title_text="minutes", row=len(names), col=1)
    figure.update_layout(template="plotly_white", height=220 * len(names))
    figure.write_html(file, include_plotlyjs=True)


async def _long_run(
    app: Any, known: Sequence[Known], minutes: float, seed: int
) -> tuple[Tally, list[dict[str, float]]]:
    started = time.monotonic()
    samples: list[Sample] = []
    tally_now = Tally()

    def goes_on(tally: Tally) -> bool:
        nonlocal tally_now
        tally_now = tally
        return time.monotonic() - started < minutes * 60

    async def watch() -> None:
        async with httpx.AsyncClient(base_url=app.url, timeout=60) as client:
            while True:
                samples.append(_watch(app.process.pid, (await client.get("/engine/state")).json(), started))
                await asyncio.sleep(2)

    watching = asyncio.ensure_future(watch())
    tally = await storm(app.url, known, goes_on, seed=seed)
    await asyncio.sleep(20)  # half-sent requests run out of time
    watching.cancel()
    return tally, samples


def main() -> int:
    """The command line. 1 when anything was wrong or left behind."""
    from tests.flow.app_process import App
    from tests.http_server import wait_until

    parser = argparse.ArgumentParser(prog="python -m tests.flow.storm")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = rand(Path(folder) / "rand")
        known = known_answers(model, options.seed)
        sizes = "--num-blocks 64 --max-model-len 256 --max-queue 32 --check-invariants --dtype float32"
        app = App("--model", str(model), *sizes.split())
        try:
            wait_until(lambda: app.health() == 200, 120)
            tally, samples = asyncio.run(_long_run(app, known, options.minutes, options.seed))
        finally:
            app.process.terminate()
            app.process.wait(30)
    if options.picture is not None:
        _draw(samples, options.picture)
    for kind, count in sorted(tally.counts.items()):
        print(f"{kind:16} {count}")
    middle, last = samples[len(samples) // 2], samples[-1]
    for name in samples[0]:
        print(f"{name:16} first {samples[0][name]:.1f}, half way {middle[name]:.1f}, at the end {last[name]:.1f}")
    for words in tally.wrong[:20]:
        print("WRONG:", words)
    leaks = [name for name in ("active_blocks", "requests") if last[name]]
    leaks += [name for name in ("file_descriptors", "threads") if last[name] > samples[0][name] + 16]
    leaks += ["memory_mb"] if last["memory_mb"] > 1.1 * middle["memory_mb"] + 20 else []
    print("left behind:", ", ".join(leaks) or "nothing")
    return 1 if tally.wrong or leaks or app.process.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
