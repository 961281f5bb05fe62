"""What open pages cost the engine: decode speed alone and with ten of them, in turns, and the bytes that one is sent.

    python -m tests.flow.cost_of_pages --model auto --pages 10

The pages are sockets in a process of their own, so that only the server's side is measured; each asks for the steps as
fast as a page does. The pool has 8,192 blocks; eight requests decode all the time. Prints the median of each and the
ratio of neighbours in time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection as Pipe
from typing import Any

import torch
from fastapi import FastAPI
from websockets.sync.client import connect

from engine.loading import load_model, open_model
from engine.scheduling.sampling_params import SamplingParams
from engine.serving.service import EngineService
from engine.settings import EngineSettings
from tests.http_server import serving
from viz import panels

ROUND_S = 6.0
BATCH = 8


def look(url: str, num_pages: int, seconds: float, pipe: Pipe) -> None:
    """Be `num_pages` pages for a while; tells the bytes a second that one was sent, once it had caught up."""
    sockets = [connect(url, max_size=None) for _ in range(num_pages)]
    asks: list[dict[str, Any]] = [{} for _ in sockets]
    sent, started, counted_from = 0, time.monotonic(), 0.0
    while time.monotonic() - started < seconds:
        for i, socket in enumerate(sockets):
            socket.send(json.dumps(asks[i]))
        for i, socket in enumerate(sockets):
            text = str(socket.recv())
            answer = json.loads(text)
            has_caught_up = bool(asks[i])
            if answer["steps"]:
                asks[i] = {"since": answer["steps"][-1]["s"], "epoch": answer["epoch"]}
            if i == 0 and has_caught_up:
                counted_from = counted_from or time.monotonic()
                sent += len(text)
    pipe.send(sent / max(1e-9, time.monotonic() - counted_from))


def decode_speed(service: EngineService, seconds: float) -> float:
    """Tokens a second over the steps of the next `seconds`."""
    first = service.ring.newest
    time.sleep(seconds)
    records = [record for record in service.steps(first).records if not record.active_prefill]
    tokens = sum(len(record.outputs) for record in records)
    return tokens / (records[-1].time_s + records[-1].duration_s - records[0].time_s)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    loaded = load_model(open_model(args.model, "auto", args.dtype), "auto", 8192, 16)
    settings = EngineSettings(num_blocks=8192, max_num_seqs=BATCH, max_model_len=loaded.info.get("max_model_len", 8192))
    service = EngineService(loaded.runner, loaded.tokenizer, settings, vocab_size=loaded.vocab_size)
    service.start()
    app = FastAPI()
    panels.register_routes(app, service)
    long = SamplingParams(max_tokens=None, temperature=0.0, ignore_eos=True)

    def keep_full() -> None:
        for _ in range(BATCH):
            service.submit(tuple(range(100, 164)), long, client="measure")
        time.sleep(2.0)

    alone, watched, bytes_per_s = [], [], []
    with serving(app) as url:
        for _ in range(args.rounds):
            keep_full()  # anew for each round, so that both sides see the same context lengths
            alone.append(decode_speed(service, ROUND_S))
            service.abort_client("measure")
            keep_full()
            ours, theirs = multiprocessing.Pipe()
            target = url.replace("http", "ws") + "/ui/feed?page=measure"
            reader = multiprocessing.get_context("spawn").Process(
                target=look, args=(target, args.pages, ROUND_S + 3.0, theirs)
            )
            reader.start()
            time.sleep(1.5)  # they connect and catch up
            watched.append(decode_speed(service, ROUND_S))
            bytes_per_s.append(ours.recv())
            reader.join()
            service.abort_client("measure")
    service.stop()
    ratios = [w / a for w, a in zip(watched, alone, strict=True)]
    print(f"{loaded.info.get('dtype')}, {torch.get_num_threads()} threads, batch {BATCH}, {args.pages} pages")
    print(f"alone    {statistics.median(alone):7.1f} tokens/s  ({', '.join(f'{v:.0f}' for v in alone)})")
    print(f"watched  {statistics.median(watched):7.1f} tokens/s  ({', '.join(f'{v:.0f}' for v in watched)})")
    print(f"ratio    {statistics.median(ratios):7.3f}             ({', '.join(f'{v:.3f}' for v in ratios)})")
    print(f"one page {statistics.median(bytes_per_s) / 1000:7.1f} KB/s before compression")


if __name__ == "__main__":
    main()
