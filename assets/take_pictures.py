"""Takes the README's pictures of the page, in a headless Chromium, from a server that runs.

    python app.py --port 7860 &
    python -m assets.take_pictures [--url http://127.0.0.1:7860] [--out assets]

Needs playwright and a Chromium. Every picture shows what the server really did while it was taken.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE_MS = 180_000


def open_page(browser: Any, url: str, width: int, height: int, theme: str) -> Any:
    """The page in a window of that size."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{url}/?__theme={theme}")
    page.wait_for_selector(".ep-dashboard")
    return page


def choose(page: Any, switch: str, name: str) -> None:
    """Press one segment of a switch and wait until the engine has taken it."""
    page.locator(f"#switch-{switch} label", has_text=name).first.click()
    page.wait_for_selector(f"#switch-{switch} label.selected:has-text('{name}')")


def eight_at_once(page: Any, path: Path) -> None:
    """Eight prompts in the middle of their answers."""
    page.click("#send-all")
    page.wait_for_function(
        "[...document.querySelectorAll('.pg-card .pg-text')].filter((n) => n.innerText.length > 75).length >= 5"
    )
    page.screenshot(path=path)
    page.wait_for_function("document.querySelectorAll('.pg-card .pg-metrics').length === 8")


def on_a_phone(page: Any, path: Path) -> None:
    """The panels on a narrow screen: one request picked, its reasons before the strip, the jump bar at the foot."""
    page.click("#send-all")
    page.wait_for_function(
        "[...document.querySelectorAll('.pg-card .pg-text')].filter((n) => n.innerText.length > 60).length >= 5"
    )
    page.locator(".pg-card .pg-chip >> nth=2").click()
    page.locator(".ep-jump").get_by_role("button", name="Now").click()
    page.wait_for_timeout(600)
    page.screenshot(path=path)
    page.wait_for_function("document.querySelectorAll('.pg-card .pg-metrics').length === 8")


def contiguous_memory(page: Any, path: Path) -> None:
    """Reservations that nobody uses yet, one request picked."""
    choose(page, "layout", "contiguous")
    page.click("#send-all")
    page.wait_for_function(
        "[...document.querySelectorAll('.pg-card .pg-text')].filter((n) => n.innerText.length > 60).length >= 5"
    )
    page.locator(".pg-card .pg-chip >> nth=2").click()
    page.locator(".ep-grid").first.scroll_into_view_if_needed()
    page.wait_for_timeout(600)
    page.screenshot(path=path)
    page.wait_for_function("document.querySelectorAll('.pg-card .pg-metrics').length === 8")
    page.locator("#switch-layout").scroll_into_view_if_needed()
    choose(page, "layout", "paged")


def comparison(page: Any, path: Path) -> None:
    """Static against continuous."""
    page.get_by_role("tab", name="Compare").click()
    page.click("#question-batching")
    page.wait_for_selector(".pg-table")
    page.wait_for_timeout(2500)
    page.screenshot(path=path)


def main() -> None:
    """Take them all."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:7860")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, width, height, theme, take in (
            ("playground-light", 1440, 1250, "light", eight_at_once),
            ("playground-dark", 1440, 1250, "dark", eight_at_once),
            ("contiguous", 1440, 1250, "light", contiguous_memory),
            ("compare", 1440, 1350, "light", comparison),
            ("playground-390", 390, 1300, "light", on_a_phone),
        ):
            page = open_page(browser, options.url, width, height, theme)
            take(page, options.out / f"{name}.png")
            page.close()
            print(f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
