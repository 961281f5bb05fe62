"""The tiny models, written once a session, and loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiny_models


@pytest.fixture(scope="session")
def rand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RAND: sensitive to every prompt token and position."""
    return tiny_models.rand(tmp_path_factory.mktemp("rand"))


@pytest.fixture(scope="session")
def hist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HIST: sensitive to missing, doubled and foreign slots."""
    return tiny_models.hist(tmp_path_factory.mktemp("hist"))


@pytest.fixture(scope="session")
def poison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """POISON: NaN for whoever holds the token "!"."""
    return tiny_models.poison(tmp_path_factory.mktemp("poison"))
