"""The page's service attached to llama.cpp's own server.

    python -m tests.clients.attached_llama_server --llama-server BINARY --gguf FILE

needs a `llama-server`, for example built from the source in the PyPI package `llama-cpp-python`. Asks it, through the
attached service and by itself, and looks at what its metrics say meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import httpx

from engine.bench.peer import llama_server
from engine.cli import Options
from engine.launch import launch
from engine.scheduling.sampling_params import SamplingParams
from tests.http_server import wait_until

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.attached_llama_server")
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    options = parser.parse_args()
    with llama_server(options.llama_server, options.gguf, slots=4, context=1024, threads=2) as url:
        body = {"messages": QUESTION, "max_tokens": 24, "temperature": 0}
        alone = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).json()["choices"][0]["message"][
            "content"
        ]
        attached = launch(Options(attach=url))
        attached.service.start()
        prompt = attached.tokenizer.chat_tokens(QUESTION)
        params = SamplingParams(max_tokens=24, temperature=0.0)
        answer = attached.service.submit(prompt, params)[0].result(120)
        assert answer.text == alone, (answer.text, alone)
        assert answer.metrics is not None
        assert answer.metrics.num_output_tokens > 0
        long = attached.service.submit((300, 301, 302), SamplingParams(max_tokens=400, ignore_eos=True))[0]
        wait_until(lambda: long.request_id in attached.service.state()["pending_decode"], 60)
        long.cancel()
        assert long.result(60).finish_reason == "abort"
        wait_until(lambda: attached.service.state()["pending_decode"] == [], 60)  # its slot is free again
        assert attached.service.state()["attached"]["has_metrics"]
        attached.close()
    print(f"asked through the attached service and alone: {alone!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
