"""The comparison tool finds nothing where there is nothing, and the right tensor where something was spoilt."""

from pathlib import Path

import pytest
import torch

from engine.model.checkpoint import load
from engine.model.compare import compare_activations, first_departure, main, our_activations, reference_activations
from engine.model.rope import RopeParameters, RotaryEmbedding
from tests import gguf_files, tiny_models

PLAIN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.rand(tmp_path_factory.mktemp("rand"))


@pytest.mark.parametrize("spoilt", ["layers.1.mlp", "layers.0.self_attn.k_rope", "layers.2.self_attn.v_proj", None])
def test_the_first_tensor_that_departs_is_named(folder: Path, spoilt: str | None) -> None:
    model, config = load(folder, torch.float32)
    with torch.no_grad():
        if spoilt == "layers.1.mlp":
            model.layers[1].mlp.down_proj.weight *= 1.01
        elif spoilt == "layers.0.self_attn.k_rope":  # the classic: rotate with unscaled frequencies
            model.rotary = RotaryEmbedding(RopeParameters(config.rope.rope_theta), config.head_dim)
        elif spoilt:
            model.layers[2].self_attn.v_proj.weight[0, 0] = float("nan")
    ids = torch.arange(4, 154)
    reference = tiny_models.reference_model(folder)
    rows = compare_activations(our_activations(model, ids), reference_activations(reference, ids), 3)
    assert len(rows) == 3 * 11 + 3
    departure = first_departure(rows, 1e-4)
    if spoilt == "layers.0.self_attn.k_rope":
        spoilt = "layers.0.self_attn.q_rope"  # q is rotated by the same tables, and looked at before k
    assert (departure.name if departure else None) == spoilt
    assert reference.config._attn_implementation == "sdpa"


def test_the_command_prints_the_table_and_draws_the_picture(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "picture.html"
    assert main([str(folder), "--num-tokens", "40", "--out", str(out)]) == 0
    assert "all 36 activations agree within 0.0001" in capsys.readouterr().out
    assert "layers.2.self_attn.attention" in out.read_text(encoding="utf-8")


def test_a_gguf_file_is_compared_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_models.rand(tmp_path / "hf", **PLAIN_ROPE)
    file = gguf_files.convert(folder, tmp_path / "model.gguf", "Q8_0")
    assert main([str(file), "--num-tokens", "40", "--out", str(tmp_path / "p.html")]) == 0
    assert "agree" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_one_line_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nothing")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
