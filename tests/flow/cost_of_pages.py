"""What open pages cost the engine: decode speed alone and with ten of them, in turns, and the bytes that one is sent.

    python -m tests.flow.cost_of_pages --model auto --pages 10

The pages are sockets in a process of their own, so that only the server's side is measured; each asks for the steps as
fast as a page does. The pool has 8,192 blocks; eight requests decode all the time. Prints the median of each and the
ratio of neighbours in time.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from fastapi import FastAPI

from engine.loading import load_model, open_model
from engine.scheduling.sampling_params import SamplingParams
from engine.serving.service import EngineService
from engine.settings import EngineSettings
from tests.http_server import serving
from viz import panels

READER = Path(__file__).with_name("page_reader.py")
ROUND_S = 6.0
BATCH = 8


class Pages:
    """Open pages, in a process of their own, while the block runs; `bytes_per_s` of one of them is known afterwards."""

    def __init__(self, url: str, num_pages: int) -> None:
        self._command = [sys.executable, str(READER), url, str(num_pages)]
        self.bytes_per_s = 0.0

    def __enter__(self) -> Pages:
        self._reader = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._reader.stdout is not None
        assert self._reader.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *error: object) -> None:
        self.bytes_per_s = float(self._reader.communicate("")[0])


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
            with Pages(url.replace("http", "ws") + "/ui/feed", args.pages) as pages:
                watched.append(decode_speed(service, ROUND_S))
            bytes_per_s.append(pages.bytes_per_s)
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
