"""How much memory an open page takes while the engine runs: heap and nodes after collecting garbage, as time goes by.

    python -m tests.ui.harness --port 7999 --load 3 &
    python -m tests.ui.page_memory --url http://127.0.0.1:7999 [--seconds 75]

The window is tall, so that every panel is in sight and drawn. Needs playwright and a Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import time
from typing import Any

from tests.ui.conftest import FLAGS

EVERY_S = 15
STATE = """(() => {
  const { board } = document.querySelector(".engine-panels");
  return [board.view.history.newest, Math.min(...board.slow.map((panel) => panel.chart.numUpdates))];
})()"""


def measure(page: Any, seconds: int) -> None:
    """Print one row every `EVERY_S` seconds."""
    cdp = page.context.new_cdp_session(page)
    start = time.monotonic()
    print("| seconds | heap, MB | nodes | newest step | redraws of each chart |\n| --- | --- | --- | --- | --- |")
    for due in range(EVERY_S, seconds + 1, EVERY_S):
        page.wait_for_timeout(1000 * max(0.0, start + due - time.monotonic()))
        for _ in range(2):
            cdp.send("HeapProfiler.collectGarbage")
        heap = cdp.send("Runtime.getHeapUsage")["usedSize"] / 1e6
        nodes = cdp.send("Memory.getDOMCounters")["nodes"]
        step, redraws = page.evaluate(STATE)
        print(f"| {due} | {heap:.1f} | {nodes:,} | {step:,} | {redraws} |", flush=True)


def main() -> None:
    """Open the page and look."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--seconds", type=int, default=75)
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 3200})
        page.goto(options.url)
        page.wait_for_selector(".ep-chart .main-svg")
        measure(page, options.seconds)
        browser.close()


if __name__ == "__main__":
    main()
