"""axe-core over every tab of the whole page, light and dark, with something on it: nothing to object to in what we draw."""

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
    page.click("#preset-burst")
    page.wait_for_selector(".pg-load:has-text('under way')")
    for name in ("A production trace", "Your own workload", "System prompt and sampling", "Sizes: blocks"):
        page.get_by_role("button", name=name).click()


def compare(page: Any, server: PageServer) -> None:
    """A comparison that is done."""
    open_tab(page, "Compare")
    page.click("#question-batching")
    page.wait_for_selector(".pg-table", timeout=60_000)
    page.wait_for_selector(".ep-two .ep-chip")
    page.locator("#compare-settings button").first.click()


def lessons(page: Any, server: PageServer) -> None:
    """A lesson with its experiment and a verdict."""
    open_tab(page, "Lessons")
    page.click("#lesson-run")
    page.wait_for_selector("#panels-lesson canvas")
    page.click("#lesson-try")
    page.wait_for_selector("#lesson-verdict >> text=/./")


def replay(page: Any, server: PageServer) -> None:
    """The shipped run."""
    open_tab(page, "Replay")
    page.click("#trace-shipped")
    page.wait_for_selector("#panels-trace canvas")


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
    ours, theirs = [], []
    for violation in found["violations"]:
        for node in violation["nodes"]:
            why = [check["message"] for check in node["any"] + node["all"] + node["none"]]
            words = (violation["impact"], violation["id"], node["target"], node["html"][:120], *why)
            is_ours = page.locator(node["target"][0]).first.evaluate(f"(n) => Boolean(n.closest({OURS!r}))")
            (ours if is_ours else theirs).append(words)
    print(found["testEngine"], *theirs, *["OURS "+str(o) for o in ours], sep="\n")
    context.close()
    server.service.control({"step_delay_s": 0.0})
    wait_until(lambda: not server.service.state()["pending_decode"] and not server.service.state()["pending_prefill"])
    assert ours == []
