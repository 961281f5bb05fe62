"""A running server over HTTP, driven from another process: rates, latencies, goodput, errors.

    python -m engine.bench serve --url http://127.0.0.1:7860 --arrivals poisson --rate 2 --requests 50
    python -m engine.bench serve --url http://127.0.0.1:7860 --trace TRACE.csv --requests 200 --trace-speed 4

Owns the command line and the table; `http_load` sends, `outcomes` computes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.bench import common
from engine.bench.http_load import Server, ServerError, find_server, send_all
from engine.bench.outcomes import Outcome, Targets, summary
from engine.bench.peer import llama_server
from engine.cli import API_KEY_VARIABLE
from engine.serving.trace_csv import TraceError, TraceRow, read_trace
from engine.serving.workload import Arrivals, LengthClass, Workload, WorkloadError, WorkloadSpec, generate

FIGURES = ("ttft_s", "itl_s", "tpot_s", "e2e_s")


def main(argv: Sequence[str]) -> int:
    """The command line. 0, or 2 when the server or the workload cannot be used."""
    args = _parser().parse_args(argv)
    targets = Targets(args.ttft_target, args.itl_target)
    try:
        workload = generate(_spec(args))
        runs = {args.url: _run(args.url, args, workload)}
        if args.llama_server is not None:
            runs["llama.cpp"] = _run_peer(args, workload)
    except (ServerError, WorkloadError, TraceError, OSError) as error:
        print(f"serve: error: {error}", file=sys.stderr)
        return 2
    servers = {name: summary(outcomes, targets) for name, outcomes in runs.items()}
    result: dict[str, Any] = common.about("serve", argv) | servers[args.url] | {"servers": servers}
    common.finish(result, _table(servers), args.json)
    if args.picture is not None:
        from engine.bench.serve_picture import write_picture

        write_picture(args.picture, runs)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = common.parser("serve", "Drive a running server over HTTP.", needs_model=False)
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:7860", help="the server (default: %(default)s)")
    add("--api-key", default=os.environ.get(API_KEY_VARIABLE) or None, help=f"also ${API_KEY_VARIABLE}")
    add("--model-name", help="the model to ask for (default: the server's first)")
    add("--requests", type=int, default=50, help="how many (default: %(default)s)")
    add("--arrivals", default="poisson", choices=[a.value for a in Arrivals if a is not Arrivals.TRACE])
    add("--rate", type=float, default=2.0, help="requests a second of poisson (default: %(default)s)")
    add("--users", type=int, default=8, help="people of closed, requests at a time of burst (default: %(default)s)")
    add("--gap", type=float, default=5.0, help="seconds between bursts (default: %(default)s)")
    add("--prompt-tokens", type=int, nargs=2, default=(32, 256), metavar=("LOW", "HIGH"))
    add("--output-tokens", type=int, nargs=2, default=(16, 64), metavar=("LOW", "HIGH"))
    add("--shared-prefix", type=float, default=0.0, metavar="SHARE", help="share of prompts with the same beginning")
    add("--shared-prefix-tokens", type=int, default=128)
    add("--trace", type=Path, metavar="FILE", help="arrivals and lengths from a file in Azure's format")
    add("--trace-speed", type=float, default=1.0, help="replay so many times as fast (default: %(default)s)")
    add("--trace-scale", type=float, default=1.0, help="multiply a trace's lengths by this (default: %(default)s)")
    add("--max-total-tokens", type=int, default=2048, help="cut prompt + answer to this (default: %(default)s)")
    add("--ttft-target", type=float, default=1.0, help="seconds, for goodput (default: %(default)s)")
    add("--itl-target", type=float, default=0.1, help="seconds a token, for goodput (default: %(default)s)")
    add("--picture", type=Path, metavar="FILE", help="also draw it, as one HTML file")
    add("--llama-server", type=Path, metavar="FILE", help="afterwards the same against llama.cpp's server")
    add("--gguf", type=Path, metavar="FILE", help="the model for it")
    add("--slots", type=int, default=8, help="how many requests it runs at once (default: %(default)s)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="its threads (default: %(default)s)")
    return parser


def _spec(args: argparse.Namespace) -> WorkloadSpec:
    if args.llama_server is not None and args.gguf is None:
        raise WorkloadError("--llama-server needs a model: name it with --gguf")
    spec = WorkloadSpec(
        num_requests=args.requests,
        arrivals=Arrivals(args.arrivals),
        rate_per_s=args.rate,
        burst_size=args.users,
        burst_gap_s=args.gap,
        num_users=args.users,
        mix=(LengthClass(1.0, tuple(args.prompt_tokens), tuple(args.output_tokens)),),
        shared_prefix_share=args.shared_prefix,
        shared_prefix_tokens=args.shared_prefix_tokens if args.shared_prefix else 0,
        max_total_tokens=args.max_total_tokens,
        seed=args.seed,
    )
    if args.trace is None:
        return spec
    rows = tuple(_scaled(row, args.trace_scale) for row in read_trace(args.trace, args.requests))
    return replace(spec, arrivals=Arrivals.TRACE, trace=rows, trace_speed=args.trace_speed, num_requests=len(rows))


def _scaled(row: TraceRow, scale: float) -> TraceRow:
    lengths = (max(1, round(n * scale)) for n in (row.num_prompt_tokens, row.num_output_tokens))
    return TraceRow(row.arrival_s, *lengths)


def _run(url: str, args: argparse.Namespace, workload: Workload) -> list[Outcome]:
    async def run() -> list[Outcome]:
        server: Server = await find_server(url, args.api_key, args.model_name)
        return await send_all(server, workload)

    return asyncio.run(run())


def _run_peer(args: argparse.Namespace, workload: Workload) -> list[Outcome]:
    with llama_server(args.llama_server, args.gguf, args.slots, args.max_total_tokens, args.threads) as url:
        return _run(url, argparse.Namespace(api_key=None, model_name=None), workload)


def _table(servers: dict[str, dict[str, Any]]) -> str:
    rows: list[list[object]] = [
        ["requests answered", *(f"{s['num_whole']} of {s['num_requests']}" for s in servers.values())],
        ["requests/s", *(s["request_rate"] for s in servers.values())],
        ["output tokens/s", *(s["output_tok_s"] for s in servers.values())],
        ["prompt tokens/s", *(s["prompt_tok_s"] for s in servers.values())],
    ]
    for figure in FIGURES:
        name = figure.removesuffix("_s").upper()
        cells = [" / ".join(_seconds(value) for value in s[figure].values()) for s in servers.values()]
        rows.append([f"{name} p50 / p95 / p99, s", *cells])
    target = next(iter(servers.values()))["targets"]
    rows.append(
        [f"goodput (TTFT <= {target['ttft_s']:g} s, TPOT <= {target['itl_s']:g} s), requests/s"]
        + [s["goodput"] for s in servers.values()]
    )
    rows.append(["errors", *(_counts(s["errors"]) for s in servers.values())])
    return common.table(["", *servers], rows)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _counts(errors: dict[str, int]) -> str:
    return ", ".join(f"{count} x {kind}" for kind, count in errors.items()) or "none"
