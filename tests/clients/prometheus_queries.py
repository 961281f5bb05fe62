"""Lets a real Prometheus scrape the server and runs the queries of vLLM's Grafana dashboards on it.

    python -m tests.clients.prometheus_queries --url http://127.0.0.1:7860

needs the program `prometheus` (Debian: `apt install prometheus`). Sends a little traffic first, so that every query
has something to say. Ends with 1 and the queries that gave nothing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from engine.bench.peer import free_port

WINDOW = "1m"


def quantile(metric: str, q: float) -> str:
    return f'histogram_quantile({q}, sum by(le) (rate({metric}_bucket{{model_name="$model"}}[{WINDOW}])))'


def mean(metric: str) -> str:
    chosen = f'{{model_name="$model"}}[{WINDOW}]'
    return f"rate({metric}_sum{chosen}) / rate({metric}_count{chosen})"


def rate(metric: str) -> str:
    return f'rate({metric}{{model_name="$model"}}[{WINDOW}])'


LATENCIES = ("vllm:e2e_request_latency_seconds", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds")
QUERIES = [
    *(quantile(metric, q) for metric in LATENCIES for q in (0.5, 0.9, 0.95, 0.99)),
    *(mean(metric) for metric in LATENCIES),
    *(rate(f"vllm:{name}_tokens_total") for name in ("prompt", "generation")),
    *(rate(f"vllm:request_{part}_time_seconds_sum") for part in ("queue", "prefill", "decode", "inference")),
    rate("vllm:request_max_num_generation_tokens_sum"),
    *(f'vllm:{name}{{model_name="$model"}}' for name in ("num_requests_running", "num_requests_waiting")),
    'vllm:kv_cache_usage_perc{model_name="$model"}',
    "max by (instance, engine) (vllm:kv_cache_usage_perc)",
    *(
        f'sum by(le) (increase(vllm:request_{what}_tokens_bucket{{model_name="$model"}}[{WINDOW}]))'
        for what in ("prompt", "generation")
    ),
    f'sum by(finished_reason) (increase(vllm:request_success_total{{model_name="$model"}}[{WINDOW}]))',
    f"sum(rate(vllm:prompt_tokens_total[{WINDOW}])) / sum(rate(vllm:request_success_total[{WINDOW}]))",
    f"sum(rate(vllm:prefix_cache_hits_total[{WINDOW}])) / (sum(rate(vllm:prefix_cache_queries_total[{WINDOW}])) > 0)",
    f"sum(rate(vllm:prompt_tokens_cached_total[{WINDOW}])) / (sum(rate(vllm:prompt_tokens_total[{WINDOW}])) > 0)",
    f"sum by (source) (rate(vllm:prompt_tokens_by_source_total[{WINDOW}]))",
    f"sum(rate(vllm:num_preemptions_total[{WINDOW}]))",
    *(f'sum(vllm:num_requests_waiting_by_reason{{reason="{reason}"}})' for reason in ("capacity", "deferred")),
    f"sum(rate(http_requests_total[{WINDOW}]))",
    quantile("vllm:request_time_per_output_token_seconds", 0.95),
    quantile("vllm:iteration_tokens_total", 0.5),
    "count(vllm:cache_config_info)",
    "process_resident_memory_bytes",
    "rate(process_cpu_seconds_total[1m])",
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.prometheus_queries")
    parser.add_argument("--url", default="http://127.0.0.1:7860")
    parser.add_argument("--prometheus", default="prometheus", help="the program")
    options = parser.parse_args()
    model = httpx.get(f"{options.url}/v1/models").json()["data"][0]["id"]
    with scraping(options.prometheus, options.url) as prometheus:
        for number in range(12):  # over several scrapes, else a rate has nothing to be taken from
            body = {"model": model, "prompt": f"Number {number % 3} is", "max_tokens": 8, "ignore_eos": True}
            httpx.post(f"{options.url}/v1/completions", json=body, timeout=120).raise_for_status()
            time.sleep(0.7)
        time.sleep(3)
        silent = []
        for query in QUERIES:
            answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": query.replace("$model", model)}).json()
            values = [row["value"][1] for row in answer.get("data", {}).get("result", [])]
            if answer["status"] != "success" or not values or all(value == "NaN" for value in values):
                silent.append(f"{query}: {answer.get('error', 'nothing')}")
        targets = httpx.get(f"{prometheus}/api/v1/targets").json()["data"]["activeTargets"]
    print(f"{len(QUERIES) - len(silent)} of {len(QUERIES)} queries answered; scrape {targets[0]['health']}")
    for words in silent:
        print("NOTHING:", words)
    return 1 if silent or targets[0]["health"] != "up" else 0


@contextmanager
def scraping(program: str, url: str) -> Iterator[str]:
    """The address of a Prometheus that scrapes `url` every second."""
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "wb") as log:
        target = {"job_name": "vllm", "static_configs": [{"targets": [url.removeprefix("http://")]}]}
        config = Path(folder) / "prometheus.yml"  # JSON is YAML
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [target]}))
        address = f"127.0.0.1:{free_port()}"
        command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
        process = subprocess.Popen(
            [*command, f"--web.listen-address={address}"], stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )
        try:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                try:
                    if httpx.get(f"http://{address}/-/ready").status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(0.2)
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(30)


if __name__ == "__main__":
    sys.exit(main())
