"""A model's name is shown as text, whatever it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.ui.page_server import serving_page

HOSTILE = "<img src=x onerror=window.hacked=1> ${7*7} {{value}} [a](javascript:alert(1))"


def test_a_hostile_model_name_is_text(browser: Any, tmp_path: Path) -> None:
    with serving_page(tmp_path) as server:
        server.service.model_name = HOSTILE
        page = browser.new_page()
        page.goto(server.url)
        page.wait_for_selector(".pg-facts")
        page.wait_for_function("document.querySelector('.pg-facts').innerText.includes('onerror')", timeout=20_000)
        assert HOSTILE in page.inner_text(".pg-facts")
        assert page.locator(".pg-facts img, .pg-facts a").count() == 0
        assert page.evaluate("window.hacked") is None
        page.close()
