"""How a model's makers want it sampled: the part of `generation_config.json` that concerns sampling.

Owns which of these values are believed. Never knows requests: the page starts its settings here, a request says itself
what it wants.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

_RANGES = {"temperature": (0.0, 2.0), "top_p": (0.01, 1.0), "top_k": (0, 1_000_000), "repetition_penalty": (1.0, 2.0)}


def sampling_defaults(path: Path) -> dict[str, float]:
    """Temperature, top_p, top_k and repetition_penalty, those that the folder at `path` states and that make sense.

    A model that its makers decode greedily (`do_sample` false, with no temperature of its own) gets temperature 0.
    A .gguf file, a folder without the file or an unreadable one states nothing.
    """
    try:
        config: Any = json.loads((path / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(config, dict):
        return {}
    stated = {name: config[name] for name in _RANGES if _is_sound(config.get(name), *_RANGES[name])}
    if config.get("do_sample") is False and "temperature" not in stated:
        stated["temperature"] = 0.0
    return stated


def _is_sound(value: Any, low: float, high: float) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and low <= value <= high
