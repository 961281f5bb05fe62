"""What being watched costs the engine: answers streamed over HTTP with a page open, and the same requests unseen.

    python -m tests.flow.cost_of_streams --streams 20

The readers are processes of their own: one reads all event streams, one asks for the steps as a page does. They still
compete for the cores, so what they themselves spent is told too, and what the threads that serve them spent: at worst
each millisecond of it is one that the engine waits. Both sides are measured over the same places of the answers, so
that contexts are equally long; rounds are interleaved.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from engine.loading import load_model, open_model
from engine.scheduling.sampling_params import SamplingParams
from engine.serving.http_app import HttpOptions, build_http_app
from engine.serving.service import EngineService
from engine.settings import EngineSettings
from engine.telemetry.record import StepRecord
from tests.flow.cost_of_pages import Pages
from tests.http_server import serving, wait_until
from viz import panels

READER = Path(__file__).with_name("stream_reader.py")
FIRST, NUM_STEPS = 30, 50
"""Measured are the steps in which everybody's answer has from 30 to 80 tokens."""


class Streams:
    """Readers of event streams while the block runs; `cpu_share` of a core that they took is known afterwards."""

    def __init__(self, url: str, num_streams: int) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._command = [sys.executable, str(READER), host, port, str(num_streams), "600"]
        self.cpu_share = 0.0

    def __enter__(self) -> Streams:
        self._began = time.monotonic()
        self._reader = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._reader.stdout is not None
        assert self._reader.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *error: object) -> None:
        num_bytes, cpu_s = map(float, self._reader.communicate("")[0].split())
        assert num_bytes > 0
        self.cpu_share = cpu_s / (time.monotonic() - self._began)


def serving_cpu_s() -> float:
    """Processor time that this process's threads have taken, the engine's and the measuring one aside."""
    total, tick = 0, os.sysconf("SC_CLK_TCK")
    for thread in threading.enumerate():
        if thread.name not in ("engine", "MainThread"):
            stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(stat[11]) + int(stat[12])
    return total / tick


def measured(service: EngineService, num_requests: int) -> tuple[float, float, float]:
    """Of the steps in which everybody is far enough: tokens a second, milliseconds of the median step itself, and
    milliseconds a step that the serving threads took of a processor."""
    records: list[StepRecord] = []
    serving_s = 0.0
    while not records or min(records[-1].outputs.values()) < FIRST + NUM_STEPS:
        record = service.ring.last
        is_new = record is not None and (not records or record.step > records[-1].step)
        if record is not None and is_new and len(record.outputs) == num_requests:
            newer = service.steps(records[-1].step if records else record.step - 1).records
            new = [r for r in newer if len(r.outputs) == num_requests and min(r.outputs.values()) >= FIRST]
            serving_s = serving_s or serving_cpu_s() if new else serving_s
            records += new
        time.sleep(0.02)
    seconds = records[-1].time_s + records[-1].duration_s - records[0].time_s
    serving_ms = 1e3 * (serving_cpu_s() - serving_s) / len(records)
    return num_requests * len(records) / seconds, 1e3 * statistics.median(r.duration_s for r in records), serving_ms


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    count = args.streams
    loaded = load_model(open_model(args.model, "auto", args.dtype), "auto", 2048, 16)
    settings = EngineSettings(num_blocks=2048, max_num_seqs=count, max_num_batched_tokens=64 * count)
    service = EngineService(loaded.runner, loaded.tokenizer, settings, vocab_size=loaded.vocab_size)
    app = build_http_app(service, loaded.tokenizer, HttpOptions("model"))
    panels.register_routes(app, service)
    service.start()
    long = SamplingParams(max_tokens=600, temperature=0.0, ignore_eos=True)
    unseen, watched, shares = [], [], []
    with serving(app) as url:
        for round_number in range(args.rounds + 1):  # the first warms up
            for number in range(count):
                service.submit((100 + number, *range(101, 164)), long, client="measure")
            alone = measured(service, count)
            service.abort_client("measure")
            wait_until(lambda: service.state()["num_active_blocks"] == 0)
            with ExitStack() as stack:
                streams = stack.enter_context(Streams(url, count))
                stack.enter_context(Pages(url.replace("http", "ws") + "/ui/feed", 1))
                seen = measured(service, count)
            wait_until(lambda: service.state()["num_active_blocks"] == 0)
            if round_number:
                unseen.append(alone)
                watched.append(seen)
                shares.append(streams.cpu_share)
    service.stop()
    print(f"{loaded.info['dtype']}, {torch.get_num_threads()} threads, {count} streams and a page")
    for name, values in (("unseen", unseen), ("watched", watched)):
        speeds, steps, servings = zip(*values, strict=True)
        each = ", ".join(f"{speed:.0f}" for speed in speeds)
        print(f"{name:8} {statistics.median(speeds):7.1f} tokens/s ({each}), ", end="")
        print(f"step {statistics.median(steps):.2f} ms, serving threads {statistics.median(servings):.2f} ms a step")
    ratios = [w[0] / a[0] for w, a in zip(watched, unseen, strict=True)]
    print(f"ratio    {statistics.median(ratios):7.3f}          ({', '.join(f'{r:.3f}' for r in ratios)})")
    print(f"the streams' readers took {statistics.median(shares):.1%} of a core")


if __name__ == "__main__":
    main()
