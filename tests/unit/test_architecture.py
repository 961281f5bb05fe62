"""Who may know whom: the rooms of the house, held by their imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TORCH_FREE_ROOMS = ("engine.scheduling", "engine.kv", "engine.telemetry")
WITH_TENSORS = {"engine/kv/tensors.py", "engine/kv/device_attention.py", "engine/kv/paged_attention.py"}


def python_files(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    """Full names of the modules that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def breaches(files: list[Path], forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in sorted(imports_of(path))
        if any(name == room or name.startswith(room + ".") for room in forbidden)
    ]


def test_the_engine_never_knows_the_page():
    assert breaches(python_files("engine"), ("viz", "gradio")) == []


def test_only_what_prints_a_picture_draws():
    users = breaches(python_files("engine"), ("plotly",))
    assert [user for user in users if not user.startswith(("engine/bench/", "engine/model/compare"))] == []


def test_scheduling_kv_and_telemetry_import_no_torch_themselves():
    files = [
        path
        for path in python_files("engine/scheduling", "engine/kv", "engine/telemetry")
        if str(path.relative_to(ROOT)) not in WITH_TENSORS
    ]
    assert breaches(files, ("torch", "transformers", "safetensors")) == []


@pytest.mark.parametrize("module", ["engine", "engine.engine", "engine.simulated_runner", *TORCH_FREE_ROOMS])
def test_importing_them_brings_in_no_torch(module: str):
    code = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_start_does_not_wait_for_a_compiler_that_only_one_route_needs():
    code = "import engine.torch_runner, sys; sys.exit('torch.nn.attention.flex_attention' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_model_knows_nothing_of_scheduling_or_serving():
    assert breaches(python_files("engine/model"), ("engine.scheduling", "engine.serving", "engine.engine")) == []


def test_the_page_never_reaches_into_scheduler_or_cache():
    assert breaches(python_files("viz"), ("engine.kv", "engine.scheduling.scheduler", "engine.torch_runner")) == []


def test_transformers_is_only_used_for_tokenizers_and_as_a_reference():
    users = {
        str(path.relative_to(ROOT))
        for path in python_files("engine", "viz")
        if any(name.split(".")[0] == "transformers" for name in imports_of(path))
    }
    allowed = ("engine/text/", "engine/model/compare", "engine/bench/")
    assert [user for user in users if not user.startswith(allowed)] == []
