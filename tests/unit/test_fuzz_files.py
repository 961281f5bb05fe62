"""Files are hostile: whatever is changed in one, it loads, or is refused in words; it never crashes or hangs."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model import checkpoint
from engine.model.errors import ModelError
from engine.telemetry import trace_file
from engine.telemetry.trace_file import TraceError
from tests import gguf_files, tiny_models

ROOT = Path(__file__).resolve().parents[2]
PLAIN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}

Edit = tuple[float, bytes]
"""Where, as a share of the file, and what is written over it."""

edits = st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6)
kept = st.floats(0, 1)


def damaged(content: bytes, changes: list[Edit], share: float, head: int) -> bytes:
    """`content` with bytes written over, half of the edits within the first `head` bytes, and cut to `share`."""
    result = bytearray(content)
    for number, (where, what) in enumerate(changes):
        room = min(head, len(result)) if number % 2 == 0 else len(result)
        at = int(where * max(0, room - len(what)))
        result[at : at + len(what)] = what
    return bytes(result[: max(1, int(len(result) * (0.5 + share)))])


def load_or_refuse(path: Path) -> None:
    try:
        model, _ = checkpoint.load(path, torch.float32)
    except ModelError as error:
        words = str(error)
    else:
        words = f"a vocabulary of {model.config.vocab_size}"
    assert words.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.rand(tmp_path_factory.mktemp("fuzz") / "model", **PLAIN_ROPE)


@pytest.fixture(scope="module")
def copy_with(folder: Path) -> Callable[[str, bytes], Path]:
    other = folder.parent / "damaged"
    shutil.copytree(folder, other)

    def write(name: str, content: bytes) -> Path:
        for file in folder.iterdir():
            (other / file.name).write_bytes(content if file.name == name else file.read_bytes())
        return other

    return write


@settings(max_examples=60)
@given(changes=edits, share=kept)
def test_a_gguf_file_loads_or_is_refused(folder: Path, changes: list[Edit], share: float) -> None:
    whole = folder.parent / "model.gguf"
    if not whole.exists():
        gguf_files.convert(folder, whole)
    file = folder.parent / "damaged.gguf"
    file.write_bytes(damaged(whole.read_bytes(), changes, share, head=4096))
    load_or_refuse(file)


@settings(max_examples=60)
@given(changes=edits, share=kept)
def test_a_safetensors_file_loads_or_is_refused(
    folder: Path, copy_with: Callable[[str, bytes], Path], changes: list[Edit], share: float
) -> None:
    content = damaged((folder / "model.safetensors").read_bytes(), changes, share, head=2048)
    load_or_refuse(copy_with("model.safetensors", content))


@settings(max_examples=80)
@given(changes=edits, share=kept)
def test_a_configuration_loads_or_is_refused(
    folder: Path, copy_with: Callable[[str, bytes], Path], changes: list[Edit], share: float
) -> None:
    content = damaged((folder / "config.json").read_bytes(), changes, share, head=10_000)
    load_or_refuse(copy_with("config.json", content))


@settings(max_examples=60)
@given(changes=edits, share=kept)
def test_a_trace_loads_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[Edit], share: float
) -> None:
    with gzip.open(ROOT / "assets" / "playground-trace.jsonl.gz") as whole:
        content = whole.read(60_000)
    file = tmp_path_factory.getbasetemp() / "damaged.jsonl"
    file.write_bytes(damaged(content, changes, share, head=len(content)))
    try:
        words = f"{len(trace_file.load(file).steps)} steps"
    except TraceError as error:
        words = str(error)
    assert words.strip()
