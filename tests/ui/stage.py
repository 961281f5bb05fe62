"""The live panels on a bare page, over records of real scheduling that a test hands out step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.http_server import serving
from tests.ui.harness import make_app
from tests.unit.viz.recorded import Source, Traffic
from viz import feed_routes

BOARD = "(() => { const {board} = document.querySelector('.engine-panels'), view = board?.view; return %s; })()"


class Stage:
    """A server whose engine only moves when a test says so."""

    def __init__(self) -> None:
        self.source = Source()
        self.app = make_app(self.source)
        self.url = ""
        self.restart()

    def restart(self, capacity: int = 4096, **settings: Any) -> None:
        """A new engine with a new epoch; nothing has happened in it."""
        self.num_lives = getattr(self, "num_lives", 0) + 1
        self.source.ring = Source(capacity, f"life {self.num_lives}").ring
        self.traffic = Traffic(seed=7, **({"num_requests": 0} | settings))

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            record = self.traffic.step()
            assert record is not None, "the script is over"
            self.source.ring.append(record)

    @property
    def last(self) -> Any:
        return self.source.ring.last


class Tab:
    """One open page; `board` is the browser's own object."""

    def __init__(self, browser: Any, stage: Stage, path: str = "/", width: int = 1280, **context: Any) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 2600 if width > 800 else 5200}, **context
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.stage = stage
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note)
        self.page.goto(stage.url + path)

    def _note(self, message: Any) -> None:
        if (
            message.type in ("error", "warning") and "willReadFrequently" not in message.text
        ):  # that was the test itself
            self.complaints.append(message.text)

    def js(self, code: str) -> Any:
        """The value of an expression over `board` and `view`."""
        return self.page.evaluate(BOARD % code)

    def wait(self, condition: str) -> None:
        self.page.wait_for_function(BOARD % condition)

    def catch_up(self) -> None:
        """Until the page knows the newest step and every chart shows it."""
        step = self.stage.last.step
        self.wait(f"board && view.history.newest === {step}")
        if self.stage.last is not None:
            self.js("board.drawCharts()")
            self.wait("board.slow.every((panel) => panel.chart.numUpdates > 0 && !panel.chart.isBusy)")
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def panel(self, name: str) -> Any:
        return self.page.locator(f".ep-{name}").first

    def pixel(self, panel: str, x: float, y: float) -> list[int]:
        """The colour on a panel's canvas, in CSS pixels."""
        return list(
            self.js(
                f"[...board.root.querySelector('.ep-{panel} canvas').getContext('2d')"
                f".getImageData({x} * devicePixelRatio, {y} * devicePixelRatio, 1, 1).data]"
            )
        )

    def rgb(self, color: str) -> list[int]:
        """A #rrggbb expression as pixels."""
        value = self.js(color)
        return [int(value[i : i + 2], 16) for i in (1, 3, 5)] + [255]

    def fast(self, name: str) -> str:
        return f"board.fast.find((panel) => panel.root.classList.contains('ep-{name}'))"

    def slow(self, name: str) -> str:
        return f"board.slow.find((panel) => panel.root.classList.contains('ep-{name}'))"

    def sizes(self, name: str, *keys: str) -> dict[str, Any]:
        """Some fields of a canvas panel."""
        return {key: self.js(f"{self.fast(name)}.{key}") for key in keys}

    def set_hidden(self, hidden: bool) -> None:
        """Put the page into the background, or back."""
        self.page.evaluate(
            "(value) => { Object.defineProperty(document, 'hidden', {value, configurable: true});"
            " document.dispatchEvent(new Event('visibilitychange')); }",
            hidden,
        )

    def data(self, name: str) -> dict[str, Any]:
        """What a chart really shows: its traces by name."""
        traces = self.js(
            f"{self.slow(name)}.box.data.map((t) => ({{name: t.name, x: [...t.x], y: [...t.y], base: t.base,"
            f" opacity: t.marker?.opacity}}))"
        )
        return {trace["name"]: trace for trace in traces}


@pytest.fixture(scope="module")
def served() -> Iterator[Stage]:
    stage = Stage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed_routes, "UPDATES_PER_S", 100.0)
        patch.setattr(feed_routes, "TICK_S", 0.01)
        with serving(stage.app) as url:
            stage.url = url
            yield stage


@pytest.fixture
def stage(served: Stage) -> Stage:
    served.restart()
    served.source.settings = {"policy": "mixed", "paused": False, "prefix_caching": True}
    return served


@pytest.fixture
def open_tab(browser: Any, stage: Stage) -> Iterator[Callable[..., Tab]]:
    tabs: list[Tab] = []

    def open_(*args: Any, **more: Any) -> Tab:
        tabs.append(Tab(browser, stage, *args, **more))
        return tabs[-1]

    yield open_
    for tab in tabs:
        assert tab.complaints == []
        tab.context.close()


def scripted(stage: Stage) -> None:
    """Three requests on two slots: A reads 10 tokens and writes 3, B writes 20, C has to wait for A to end."""
    stage.restart(max_num_seqs=2, num_blocks=32, block_size=4)
    a = stage.traffic.add(prompt=(1,) * 10, max_tokens=3)
    b = stage.traffic.add(prompt=(2,) * 5, max_tokens=20)
    c = stage.traffic.add(prompt=(3,) * 6, max_tokens=8)
    assert (a, b, c) == (1, 2, 3)
