"""A small LLM inference engine, written to be read.

Rooms: `model` computes, `kv` keeps keys and values, `scheduling` decides who runs next, `text` turns
tokens into text and back, `telemetry` says what happened, `serving` takes requests in. `engine.engine`
puts one step together. Nothing in here knows about the web page (`viz`).

`from engine import LLM, SamplingParams` is all that a notebook needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.llm import LLM, RequestOutput
    from engine.scheduling.sampling_params import SamplingParams

__all__ = ["LLM", "RequestOutput", "SamplingParams"]

_HOMES = {
    "LLM": "engine.llm",
    "RequestOutput": "engine.llm",
    "SamplingParams": "engine.scheduling.sampling_params",
}


def __getattr__(name: str) -> Any:
    # Only when asked for: scheduling and telemetry are imported through this package, and need no torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
