"""The sampling values that a model folder states, and those that are not believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.model.sampling_defaults import sampling_defaults


def stated(folder: Path, content: object) -> dict[str, float]:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "generation_config.json").write_text(text)
    return sampling_defaults(folder)


def test_what_the_makers_state(tmp_path: Path) -> None:
    config = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 40, "eos_token_id": [1, 2]}
    assert stated(tmp_path, config) == {"temperature": 0.6, "top_p": 0.9, "top_k": 40}


def test_greedy_makers(tmp_path: Path) -> None:
    assert stated(tmp_path, {"do_sample": False}) == {"temperature": 0.0}
    assert stated(tmp_path, {"do_sample": False, "temperature": 0.2}) == {"temperature": 0.2}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        {"temperature": "hot"},
        {"temperature": -1},
        {"temperature": 99.0},
        {"top_p": 0.0},
        {"top_p": True},
        {"repetition_penalty": None},
        '{"temperature": NaN}',
        {},
    ],
)
def test_what_makes_no_sense_is_as_if_not_there(tmp_path: Path, content: object) -> None:
    assert stated(tmp_path, content) == {}


def test_a_file_states_nothing(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path / "model.gguf") == {}
