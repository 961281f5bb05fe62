"""An engine that has died: the page says so and can start it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.scheduling.sampling_params import SamplingParams
from tests.ui.page_server import serving_page


def _broken_step() -> None:
    raise RuntimeError("the engine is made to die")


def test_a_dead_engine_is_told_and_can_be_started_again(browser: Any, tmp_path: Path) -> None:
    with serving_page(tmp_path) as server:
        page = browser.new_page()
        page.goto(server.url)
        notice = page.locator(".pg-notice")
        button = page.get_by_role("button", name="Start the engine again")
        page.wait_for_selector(".pg-mood")
        button.wait_for(state="hidden")

        server.service.engine.step = _broken_step  # type: ignore[method-assign,assignment]
        (stream,) = server.service.submit([5, 6], SamplingParams(max_tokens=3))
        assert stream.result(10).finish_reason == "error"
        button.wait_for(timeout=20_000)
        assert "The engine is down" in notice.inner_text()

        button.click()
        button.wait_for(state="hidden", timeout=20_000)
        assert server.service.health() is None
        (stream,) = server.service.submit([5, 6], SamplingParams(max_tokens=3, ignore_eos=True))
        assert stream.result(10).finish_reason == "length"
        page.close()


@pytest.mark.parametrize("headers", [{"Origin": "https://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_another_sites_page_cannot_restart_it(tmp_path: Path, headers: dict[str, str], browser: Any) -> None:
    with serving_page(tmp_path) as server:
        server.service.stop()
        answer = httpx.post(f"{server.url}/ui/restart", headers=headers)
        assert answer.status_code >= 400
        assert server.service.health() is not None
