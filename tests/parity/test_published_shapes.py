"""The shape of Llama 3.2 1B, really written, loaded and run: what an empty skeleton cannot show."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.model.checkpoint import empty_model
from engine.model.config import ModelConfig

CONFIG = Path(__file__).parents[1] / "unit" / "model" / "configs" / "llama-3.2-1b-instruct.json"


def write_random_weights(folder: Path) -> int:
    """Weights of the right names and shapes in bfloat16, tiled from one small random piece; answers their bytes."""
    shutil.copy(CONFIG, folder / "config.json")
    model = empty_model(ModelConfig.from_hf(json.loads(CONFIG.read_text())))
    piece = torch.randn(2**20, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    state = {}
    for name, parameter in model.named_parameters():
        if "norm" in name:
            state[f"model.{name}"] = torch.ones(parameter.shape, dtype=torch.bfloat16)
        else:
            repeats = -(-parameter.numel() // len(piece))
            state[f"model.{name}"] = piece.repeat(repeats)[: parameter.numel()].view(parameter.shape)
    save_file(state, folder / "model.safetensors")
    return 2 * sum(tensor.numel() for tensor in state.values())


LOAD_AND_RUN = """
import json, sys
from pathlib import Path
import torch
from engine.model import checkpoint, generate

def own_bytes():  # memory of this process alone; pages of the mapped file belong to the system's cache
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("RssAnon:"))

def assign_and_look(model, name, tensor, assign=checkpoint.assign_parameter):
    assign(model, name, tensor)
    seen.append(own_bytes())

before, seen = own_bytes(), []
checkpoint.assign_parameter = assign_and_look
model, config = checkpoint.load(Path(sys.argv[1]), torch.bfloat16)
prompts = [[128000, 1, 2, 3, 4], [128000, 5]]
answers = generate.static_batch_kv(model, prompts, 3, config.eos_token_ids).token_ids
print(json.dumps({"answers": answers, "peak_bytes": max(seen) - before}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_1b_shape_loads_and_runs_in_little_more_memory_than_it_has_weights(tmp_path: Path) -> None:
    num_bytes = write_random_weights(tmp_path)
    assert num_bytes > 2.4e9
    command = [sys.executable, "-c", LOAD_AND_RUN, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    (tmp_path / "model.safetensors").unlink()
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert num_bytes < report["peak_bytes"] + 50e6  # the measure sees the weights at all
    assert report["peak_bytes"] < num_bytes + 300e6  # and no second copy of them
    answers = report["answers"]
    assert [len(answer) for answer in answers] == [3, 3]
    assert all(0 <= token < 128256 for answer in answers for token in answer)
