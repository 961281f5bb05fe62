"""The card's check, rehearsed without a card: it runs, it needs few packages, and it sees faults."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from engine import torch_runner
from engine.bench import gpu_check, gpu_model, gpu_parity, gpu_speed
from engine.kv import device_attention
from engine.kv.paged_attention import PagedAttention
from engine.torch_runner import TorchRunner
from tests.unit.kv.test_device_attention import varlen_attn

ROOT = Path(__file__).resolve().parents[3]
FORBIDDEN = ("gguf", "gradio", "fastapi", "uvicorn", "plotly", "pandas", "prometheus_client", "openai")


def test_it_runs_from_end_to_end_and_needs_few_packages(tmp_path: Path) -> None:
    arguments = ["gpu-check", "--device", "cpu", "--batch", "1", "3", "--json", str(tmp_path / "out.json")]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({FORBIDDEN!r}))\n"  # importing these fails from now on
        f"from engine.bench.__main__ import main; sys.exit(main({arguments!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All checks passed." in done.stdout
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["failed"] == []
    assert result["left_out"] == []
    assert set(result["decode"]) == {"1", "3"}
    assert result["decode"]["3"]["tok_s"] > 0
    assert result["transformers"]["static"]["1"]["tok_s"] > 0
    assert set(result["routes"].values()) == {"it needs a CUDA card"}
    assert len(result["routes"]) == 3


def test_wrong_attention_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_parity.attention("cpu", torch.float32, 0) is None
    plain = PagedAttention.__call__

    def shifted(self: PagedAttention, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return plain(self, layer, q * 1.01, k, v)

    monkeypatch.setattr(PagedAttention, "__call__", shifted)
    assert "largest difference" in str(gpu_parity.attention("cpu", torch.float32, 0))


def test_wrong_tokens_are_seen_in_every_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = PagedAttention.__init__

    def misplaced(self: PagedAttention, kv: object, slots: torch.Tensor, *rest: object) -> None:
        plain(self, kv, slots.roll(1), *rest)  # every key lands in its neighbour's slot

    monkeypatch.setattr(PagedAttention, "__init__", misplaced)
    found = {name: check() for name, check in gpu_parity.checks("cpu", torch.bfloat16, 0) if "mixed, paged" in name}
    assert len(found) == 4
    assert all(found.values())


def test_routes_are_checked_and_measured_where_they_can_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gpu_parity, gpu_speed, torch_runner):
        monkeypatch.setattr(module, "why_not", lambda route, kv: None if route == "varlen" else "not here")
    monkeypatch.setattr(device_attention, "varlen_attn", varlen_attn)
    found = {name: check() for name, check in gpu_parity.checks("cpu", torch.bfloat16, 0) if " by " in name}
    words = "by varlen, blocks of 256"
    assert found == {f"decode attention {words}": None, f"bfloat16 tokens {words}": None}
    runner = gpu_model.our_runner(
        gpu_model.reference_model("small", "cpu", torch.bfloat16, 0), "cpu", torch.bfloat16, use_graphs=True
    )
    monkeypatch.setattr(gpu_speed, "TorchRunner", partial(TorchRunner, use_graphs=True))
    assert gpu_speed.decode_by_route(runner, "flex", 16, [1], 0, 24) == "not here"
    speeds = gpu_speed.decode_by_route(runner, "varlen", 256, [1, 3], 0, 24)
    assert isinstance(speeds, dict)
    assert set(speeds) == {"1", "3"}
    monkeypatch.setattr(device_attention, "varlen_attn", lambda query: query)
    with pytest.raises(RuntimeError, match="failed at batch 1; the log says why"):
        gpu_speed.decode_by_route(runner, "varlen", 256, [1], 0, 24)


def test_what_was_measured_is_kept_when_the_run_is_ended(tmp_path: Path) -> None:
    report = gpu_check.Report({"benchmark": "gpu-check"}, 60, tmp_path / "out.json")
    report.run("first", lambda: 1)
    with pytest.raises(KeyboardInterrupt):
        report.run("second", interrupted)
    assert set(json.loads((tmp_path / "out.json").read_text())["seconds"]) == {"first", "second"}


def interrupted() -> None:
    raise KeyboardInterrupt


def test_no_time_left_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--device", "cpu", "--budget", "0"]) == 0
    assert "No time left for:" in capsys.readouterr().out
