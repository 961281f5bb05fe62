"""`python -m engine.bench serve` against the real server on a tiny model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.bench import serve
from engine.serving.service import EngineService
from tests.tiny_engine import serving_tiny
from tests.tiny_models import rand


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, EngineService]]:
    with serving_tiny(rand(tmp_path_factory.mktemp("rand")), max_queue=12, max_num_seqs=4) as running:
        yield running


def run(url: str, tmp_path: Path, *more: str) -> Any:
    sizes = ["--prompt-tokens", "5", "40", "--output-tokens", "2", "10", "--max-total-tokens", "100"]
    file = tmp_path / "result.json"
    assert serve.main(["--url", url, *sizes, "--json", str(file), *more]) == 0
    return json.loads(file.read_text())


@pytest.mark.parametrize(
    "arrivals",
    ["poisson --rate 100", "burst --users 5 --gap 0.1", "closed --users 3", "closed --users 2 --shared-prefix 0.5"],
)
def test_every_request_is_answered_and_counted(
    server: tuple[str, EngineService], tmp_path: Path, arrivals: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, _ = server
    result = run(url, tmp_path, "--requests", "12", "--arrivals", *arrivals.split())
    assert result["errors"] == {}
    assert result["num_whole"] == 12
    for figure in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        assert set(result[figure]) == {"p50", "p95", "p99"}
        assert 0 <= result[figure]["p50"] <= result[figure]["p95"] <= result[figure]["p99"]
    assert result["finish_reasons"] == {"length": 12}
    assert result["request_rate"] > 0
    assert result["output_tok_s"] > 0
    assert "TTFT p50 / p95 / p99" in capsys.readouterr().out


def test_the_same_seed_asks_for_the_same_tokens(server: tuple[str, EngineService], tmp_path: Path) -> None:
    url, _ = server
    more = ["--requests", "6", "--arrivals", "closed", "--users", "2"]
    first, second, other = (run(url, tmp_path, *more, "--seed", seed) for seed in ("1", "1", "2"))
    totals = [(r["num_prompt_tokens"], r["num_output_tokens"]) for r in (first, second, other)]
    assert totals[0] == totals[1] != totals[2]


def test_refusals_are_counted_by_kind(server: tuple[str, EngineService], tmp_path: Path) -> None:
    url, service = server
    service.control({"step_delay_s": 0.02})
    result = run(url, tmp_path, "--requests", "40", "--arrivals", "at_once", "--picture", str(tmp_path / "p.html"))
    service.control({"step_delay_s": 0.0})
    assert set(result["errors"]) == {"HTTP 429"}
    assert result["num_whole"] + result["errors"]["HTTP 429"] == 40
    assert result["num_whole"] >= 12
    assert "Plotly.newPlot" in (tmp_path / "p.html").read_text()


def test_a_trace_is_replayed(server: tuple[str, EngineService], tmp_path: Path) -> None:
    url, _ = server
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    result = run(url, tmp_path, "--trace", str(trace), "--trace-speed", "20", "--trace-scale", "0.1")
    assert (result["num_prompt_tokens"], result["num_output_tokens"]) == (37 + 40, 4 + 11)
    assert str(tmp_path) not in json.dumps(result)


@pytest.mark.skipif("AZURE_TRACE" not in os.environ, reason="AZURE_TRACE does not name the Azure chat trace")
def test_the_azure_trace_can_be_read(server: tuple[str, EngineService], tmp_path: Path) -> None:
    url, _ = server
    more = ["--trace", os.environ["AZURE_TRACE"], "--requests", "8", "--trace-speed", "100", "--trace-scale", "0.03"]
    assert run(url, tmp_path, *more)["num_whole"] == 8


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--url", "http://127.0.0.1:1"], "does not answer"),
        (["--requests", "0"], "num_requests"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--llama-server", "x"], "--gguf"),
    ],
)
def test_what_cannot_be_is_one_line(
    server: tuple[str, EngineService], more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve.main(["--url", server[0], *more]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
