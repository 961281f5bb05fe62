"""axe-core over every tab of the page, light and dark, with something on it: nothing to object to in what we draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.http_server import wait_until
from tests.ui.page_server import PageServer, serving_page


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    with serving_page(tmp_path_factory.mktemp("page")) as server:
        yield server


def open_tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def press_until(page: Any, button: str, shown: str) -> None:
    """Press a button of a part that was just opened: Gradio may not listen yet when it is first seen."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    for _ in range(5):
        page.click(button)
        try:
            page.wait_for_selector(shown, timeout=12_000)
        except PlaywrightTimeout:
            continue
        return
    raise AssertionError(f"{button} did not bring {shown}")


def chat(page: Any, server: PageServer) -> None:
    """An answer that is there, and one that grows beside it."""
    page.fill("#message textarea", "Hello")
    page.click("#send")
    page.wait_for_selector(".pg-assistant .pg-metrics")
    server.speaker.text = "word " * 190
    page.fill("#message textarea", "And now?")
    page.click("#send")
    page.wait_for_selector(".pg-assistant .pg-text:has-text('word word')")
    for button in page.locator("#panels-live").get_by_role("button", name="Table", exact=True).all():
        button.click()


def many(page: Any, server: PageServer) -> None:
    """Eight answers, some growing, some waiting, one picked."""
    server.speaker.text = "word " * 190
    page.click("#send-all")
    page.wait_for_selector(".pg-wait:has-text('in the queue')")
    page.wait_for_selector(".pg-card .pg-text:has-text('word word')")
    page.locator(".pg-card .pg-chip").first.click()
    page.wait_for_selector(".pg-chip.ep-selected")


def workloads(page: Any, server: PageServer) -> None:
    """A workload that runs, every part unfolded, the engine slowed down."""
    server.service.control({"step_delay_s": 0.2})
    open_tab(page, "Workloads")
    press_until(page, "#preset-burst", ".pg-load:has-text('under way')")
    for name in ("A production trace", "Your own workload", "System prompt and sampling", "Sizes: blocks"):
        page.get_by_role("button", name=name).click()


def compare(page: Any, server: PageServer) -> None:
    """A comparison that is done."""
    open_tab(page, "Compare")
    press_until(page, "#question-batching", ".pg-table")
    page.wait_for_selector(".ep-two .ep-chip")
    page.locator("#compare-settings button").first.click()


def lessons(page: Any, server: PageServer) -> None:
    """A lesson with its experiment and a verdict."""
    open_tab(page, "Lessons")
    press_until(page, "#lesson-run", "#panels-lesson canvas")
    press_until(page, "#lesson-try", "#lesson-verdict >> text=/./")


def replay(page: Any, server: PageServer) -> None:
    """The shipped run."""
    open_tab(page, "Replay")
    press_until(page, "#trace-shipped", "#panels-trace canvas")


SCENES = {"chat": chat, "many": many, "workloads": workloads, "compare": compare, "lessons": lessons, "replay": replay}
OURS = "[class^='pg-'], [class*=' pg-'], .engine-panels, .ep-tooltip, #switches, .preset"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("scene", list(SCENES))
def test_axe_finds_nothing_in_what_we_draw(browser: Any, server: PageServer, scene: str, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    server.speaker.text = ""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{server.url}/?__theme={theme}")
    page.wait_for_selector(".pg-empty")
    SCENES[scene](page, server)
    page.wait_for_timeout(700)  # colours of buttons glide
    found = axe.Axe().run(page).response
    ours = []
    for violation in found["violations"]:
        for node in violation["nodes"]:
            why = [check["message"] for check in node["any"] + node["all"] + node["none"]]
            words = (violation["impact"], violation["id"], node["target"], node["html"][:120], *why)
            if page.locator(node["target"][0]).first.evaluate(f"(n) => Boolean(n.closest({OURS!r}))"):
                ours.append(words)
    server.service.control({"step_delay_s": 0.0})
    if page.locator(".pg-stop").is_visible():
        page.click(".pg-stop")
    context.close()
    wait_until(lambda: not server.service.state()["pending_decode"] and not server.service.state()["pending_prefill"])
    assert ours == []
