"""What the command line says about the page, and how its handlers are registered.

Owns these values. Never knows what is built from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PageOptions:
    """`sampling` are the model's own defaults (its `generation_config`): temperature, top_p, top_k,
    repetition_penalty; what is missing is filled in."""

    lock_controls: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    system_prompt: str = ""
    max_tokens: int = 256


LONG: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
"""Handlers that stream, or that may have to say no (only queued ones can). Without the limit lifted people would wait
for each other before the engine saw them."""

QUICK: dict[str, Any] = LONG | {"queue": False}
"""Handlers that answer at once and never complain."""
