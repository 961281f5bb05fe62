"""One headless Chromium for all browser tests; without one they are skipped, or fail under CI_REQUIRE_BROWSER=1."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ui.stage import open_tab, served, stage

__all__ = ["browser", "open_tab", "served", "stage"]

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage"]


def _missing(why: str) -> None:
    if os.environ.get("CI_REQUIRE_BROWSER") == "1":
        pytest.fail(f"a browser is required here, but {why}")
    pytest.skip(f"browser tests need playwright and a Chromium: {why}")


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """A running Chromium: the system's own, or the one that playwright brought.

    It ends with these tests: while playwright runs, no other test of the process can start an event loop.
    """
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        _missing("playwright is not installed")
    system = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        try:
            chromium = playwright.chromium.launch(executable_path=system, args=FLAGS)
        except Error as error:
            _missing(f"none could be started ({str(error).splitlines()[0]})")
        yield chromium
        chromium.close()
