"""Each of the three classic benchmarks draws its picture, with the numbers of its table in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.bench import modes, serving, simulate
from tests import tiny_models


def test_simulate(tmp_path: Path) -> None:
    file, numbers = tmp_path / "picture.html", tmp_path / "result.json"
    simulate.main(["--picture", str(file), "--json", str(numbers)])
    text, result = file.read_text(), json.loads(numbers.read_text())
    assert (result["static"]["decode_steps"], result["continuous"]["decode_steps"]) == (32, 20)
    assert '"y":[32]' in text
    assert '"y":[20]' in text
    assert '"y":[0.4375]' in text


@pytest.mark.parametrize("bench", [modes, serving])
def test_on_a_model(bench: object, tmp_path: Path) -> None:
    folder = tiny_models.rand(tmp_path / "model")
    file, numbers = tmp_path / "picture.html", tmp_path / "result.json"
    options = ["--model", str(folder), "--device", "cpu", "--dtype", "float32", "--rounds", "1"]
    bench.main([*options, "--picture", str(file), "--json", str(numbers)])  # type: ignore[attr-defined]
    rows = json.loads(numbers.read_text())["rows"]
    key = "wall_s" if bench is modes else "continuous_wall_s"
    assert all(str(row[key]) in file.read_text() for row in rows)
    assert len(rows) == (11 if bench is modes else 4)
