"""The live panels in a real browser, over records of real scheduling that the tests hand out step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from engine.telemetry.record import Event, EventKind
from tests.http_server import serving
from tests.ui.harness import make_app
from tests.unit.viz.recorded import Source, Traffic
from viz import feed_routes

HOSTILE = "<img src=x onerror=window.hacked=1> ${7*7} {{value}} **bold** <b>b</b>"
BOARD = "(() => { const {board} = document.querySelector('.engine-panels'), view = board?.view; return %s; })()"
CHARTS = ("memory", "latency", "gantt", "firsttoken", "anatomy")


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


def test_every_panel_draws_what_happened(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    scripted(stage)
    stage.run(2)
    tab = open_tab()
    tab.catch_up()
    tile = tab.page.locator(".ep-tile-value")
    assert tile.all_inner_texts()[:2] == ["2", "1"]
    assert tab.panel("tile-waiting").locator(".ep-tile-note").inner_text() == "no slot"
    assert [b.inner_text().split() for b in tab.page.locator(".ep-chip").all()] == [
        ["A", "2"],
        ["B", "2"],
        ["C", "no", "slot"],
    ]
    assert tab.panel("strip").locator(".ep-headline").inner_text().startswith("Step 2 computed 2 of at most 24 tokens")
    why = tab.panel("why").inner_text()
    assert "C waits: no free slot" in " ".join(why.split())

    strip = tab.sizes("strip", "ids", "first", "last", "cell", "rowHeight", "labels")
    assert (strip["ids"], strip["first"], strip["last"]) == ([1, 2, 3], 1, 2)
    middle = strip["rowHeight"] / 2
    assert tab.pixel("strip", strip["labels"] + 1, strip["rowHeight"] - 5) == tab.rgb("view.color(1)")  # prefill: full
    assert tab.pixel("strip", strip["labels"] + 1, 4) == tab.rgb("view.color(1)")
    assert tab.pixel("strip", strip["labels"] + strip["cell"] + 3, middle) == tab.rgb("view.color(1)")  # decode: a band
    assert tab.pixel("strip", strip["labels"] + strip["cell"] + 3, 4)[3] == 0
    assert tab.pixel("strip", strip["labels"] + 2, 2.5 * strip["rowHeight"] - middle + 4)[3] == 0  # C waits: no block

    size = tab.js(f"{tab.fast('grid')}.lay.size")
    owner = tab.js("[...view.map.owner]")
    assert owner[:5] == [1, 1, 1, 2, 2]
    assert tab.pixel("grid", 3, 3) == tab.rgb("view.color(1)")
    assert tab.pixel("grid", 3 * size + 3, 3) == tab.rgb("view.color(2)")
    assert tab.pixel("grid", 20 * size + 3, 3) == tab.rgb("view.theme.sunken")

    memory = tab.data("memory")
    assert memory["stored tokens"]["y"] == [15, 17]
    assert memory["reserved, unused"]["y"] == [20 - 15, 20 - 17]
    assert memory["free"]["y"] == [27 * 4, 27 * 4]
    assert memory["internal fragmentation"]["y"] == pytest.approx([0.25, 0.15])
    gantt = tab.data("gantt")
    assert gantt["prefill"]["y"] == ["A", "B"]
    assert gantt["queue"]["y"] == ["C"]
    first_s = stage.source.ring.since(0).records[0].duration_s
    assert tab.data("latency")["TTFT"]["x"] == pytest.approx([first_s, first_s], abs=1e-4)
    split = tab.data("firsttoken")
    assert split["waiting in the queue"]["x"] == ["A", "B"]
    assert [sum(parts) for parts in zip(*(trace["y"] for trace in split.values()), strict=True)] == pytest.approx(
        [first_s, first_s], abs=1e-4
    )
    forward = tab.data("anatomy")["forward pass"]["y"]
    assert forward == pytest.approx([r.times.forward_s * 1000 for r in stage.source.ring.since(0).records], abs=0.01)


def test_one_selection_and_one_time_for_all(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    scripted(stage)
    stage.run(6)
    tab = open_tab()
    tab.catch_up()
    size = tab.js(f"{tab.fast('grid')}.lay.size")
    tab.panel("grid").locator("canvas").click(position={"x": 3 * size + 4, "y": 4})  # B's first block
    tab.wait("view.cursor.selected === 2")
    tab.catch_up()
    assert [b.get_attribute("aria-pressed") for b in tab.page.locator(".ep-chip").all()] == ["false", "true", "false"]
    assert tab.panel("why").locator(".ep-headline").inner_text().startswith("In step 6, B writes token 6")
    assert tab.panel("blocktable").locator(".ep-headline").inner_text().startswith("B owns 3 blocks")
    assert tab.data("firsttoken")["waiting in the queue"]["opacity"][:2] == [0.3, 1]
    faded = tab.pixel("strip", tab.js(f"{tab.fast('strip')}.labels") + 2, 10)
    assert faded[3] < 120

    strip = tab.sizes("strip", "first", "cell", "labels")
    x = strip["labels"] + (2 - strip["first"]) * strip["cell"] + 3
    tab.panel("strip").locator("canvas").click(position={"x": x, "y": 50})  # C, in step 2
    tab.wait("view.frame.step === 2 && view.cursor.selected === 3")
    tab.catch_up()
    assert "waits: no free slot" in tab.panel("why").inner_text()
    assert tab.page.locator(".ep-status").inner_text() == "Looking at the past"
    assert tab.page.locator(".ep-where").inner_text().startswith("step 2 ")
    assert tab.js("[...view.map.owner].filter((id) => id === 1).length") == 3
    assert tab.js(f"{tab.slow('memory')}.box.layout.shapes.length") == 1
    tab.page.get_by_role("button", name="Live").click()
    tab.wait("view.cursor.isLive && view.frame.step === 6")
    tab.catch_up()
    bar = tab.page.locator(".ep-gantt .barlayer .trace").nth(2).locator("path").first.bounding_box()  # A decodes
    tab.page.mouse.move(bar["x"] + bar["width"] / 2 - 3, bar["y"] + bar["height"] / 2)
    tab.page.mouse.move(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
    tab.page.wait_for_selector(".ep-gantt .hoverlayer .hovertext")
    tab.page.mouse.click(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
    tab.wait("view.cursor.selected === 1")


def test_the_past_is_shown_as_it_was(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    stage.restart(num_requests=40, num_blocks=24)
    stage.run(60)
    then = stage.last
    tables = stage.source.ring.since(None).base
    assert tables is not None
    for record in stage.source.ring.since(0).records:
        tables.apply(record)
    stage.run(60)
    tab = open_tab()
    tab.catch_up()
    tab.page.locator(".ep-slider").fill(str(then.step))
    tab.wait(f"view.frame.step === {then.step}")
    tab.catch_up()
    assert tab.js("Object.fromEntries(view.map.tables)") == {str(k): v for k, v in tables.tables.items()}
    assert tab.page.locator(".ep-tile-memory .ep-tile-note").inner_text() == f"{then.num_active_blocks} of 24 blocks"


def test_why_begins_with_what_threw_a_request_out(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    stage.restart(max_num_seqs=2, num_blocks=8, block_size=4)
    for token in (1, 2):
        stage.traffic.add(prompt=(token,) * 10, max_tokens=16)
    stage.run(1)
    while not any(event.kind is EventKind.PREEMPTED for event in stage.last.events):
        stage.run(1)
    tab = open_tab()
    tab.catch_up()
    tab.js("view.cursor.set({selected: 2})")
    tab.catch_up()
    assert tab.panel("why").locator(".ep-headline").inner_text().startswith("B was preempted to make room for A: lost ")
    assert "B waits: " in tab.panel("why").locator("li").first.inner_text()


def test_a_zoom_stays_and_no_plot_is_ever_replaced(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    stage.restart(num_requests=400)
    stage.run(40)
    tab = open_tab()
    tab.catch_up()
    tab.js("(document.querySelectorAll('.ep-chart, canvas').forEach((node, i) => { node.mark = i + 1; }), 0)")
    tab.js("(document.querySelectorAll('.ep-chart .main-svg').forEach((node) => { node.mark = 1; }), 0)")
    plot = tab.page.locator(".ep-memory .nsewdrag").first
    box = plot.bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 64, steps=6)
    tab.page.mouse.up()
    tab.wait(f"{tab.slow('memory')}.range.zoomed !== null")
    tab.catch_up()
    zoomed = tab.js(f"{tab.slow('memory')}.box.layout.xaxis.range")
    for _ in range(100):
        stage.run(1)
        before = tab.js(f"{tab.slow('memory')}.chart.numUpdates")
        tab.wait(f"view.history.newest === {stage.last.step}")
        tab.js("board.drawCharts()")
        tab.wait(f"{tab.slow('memory')}.chart.numUpdates > {before}")
    for name in ("memory", "latency", "gantt", "anatomy"):  # zooming one zooms all that have a time axis
        assert tab.js(f"{tab.slow(name)}.box.layout.xaxis.range") == pytest.approx(zoomed, abs=1e-6), name
        assert tab.js(f"{tab.slow(name)}.box._fullLayout.xaxis.range") == pytest.approx(zoomed, abs=1e-6), name
    assert tab.js("[...document.querySelectorAll('.ep-chart, canvas')].filter((node) => !node.mark).length") == 0
    assert tab.js("[...document.querySelectorAll('.ep-chart .main-svg')].filter((node) => !node.mark).length") == 0
    plot.dblclick(position={"x": 30, "y": 30})
    tab.wait(f"{tab.slow('memory')}.range.zoomed === null")


def test_memory_does_not_grow(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    stage.restart(capacity=300, num_requests=100_000)
    stage.run(300)
    tab = open_tab()
    tab.catch_up()
    cdp = tab.context.new_cdp_session(tab.page)

    def run(num_steps: int) -> None:
        for _ in range(num_steps // 100):
            stage.run(100)
            tab.wait(f"view.history.newest === {stage.last.step}")

    def heap() -> float:
        cdp.send("HeapProfiler.collectGarbage")
        return float(cdp.send("Runtime.getHeapUsage")["usedSize"])

    tab.js("(clearInterval(board.timer), board.realCharts = board.drawCharts, board.drawCharts = () => {}, 0)")
    run(1000)
    before, nodes = heap(), tab.js("document.querySelectorAll('*').length")
    run(3000)
    assert tab.js("view.history.frames.length") == 300
    assert heap() < before + 700_000
    assert tab.js("document.querySelectorAll('*').length") < nodes + 100

    # The charts' library keeps the sizes of up to 10,000 texts it has measured, so its heap says little; its nodes do.
    nodes = []
    for _ in range(8):
        run(100)
        tab.js("board.realCharts()")
        tab.wait("board.slow.every((panel) => !panel.chart.isBusy)")
        nodes.append(tab.js("document.querySelectorAll('*').length"))
    assert max(nodes[4:]) < max(nodes[:4]) + 300


def test_a_page_in_the_background_asks_for_nothing_and_catches_up(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    stage.restart(num_requests=200)
    stage.run(10)
    tab = open_tab()
    tab.catch_up()
    tab.js(
        "(({socket}) => { const send = socket.send.bind(socket); socket.asks = 0;"
        " socket.send = (text) => { socket.asks += 1; send(text); }; return 0; })(view.source)"
    )
    tab.set_hidden(True)
    stage.run(1)
    tab.wait("view.source.status === 'away'")  # the question that was under way is answered, none follows
    stage.run(80)
    assert tab.js("view.source.socket.asks") == 0
    assert tab.js("view.history.newest") < stage.last.step
    tab.set_hidden(False)
    tab.catch_up()
    assert tab.js("view.history.frames.map((f) => f.step)") == list(range(1, stage.last.step + 1))
    assert tab.page.locator(".ep-note").is_hidden()


def test_a_page_that_was_away_too_long_says_what_it_skipped(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    stage.restart(capacity=50, num_requests=500)
    stage.run(20)
    tab = open_tab()
    tab.catch_up()
    tab.set_hidden(True)
    stage.run(1)
    tab.wait("view.source.status === 'away'")
    stage.run(100)
    tab.set_hidden(False)
    tab.catch_up()
    assert tab.page.locator(".ep-note-words").inner_text() == "This page was away for long: steps 22–71 are not shown."
    tab.page.locator(".ep-note").get_by_role("button").click()
    assert tab.page.locator(".ep-note").is_hidden()


def test_a_restarted_engine_starts_over(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    stage.restart(num_requests=100)
    stage.run(50)
    tab = open_tab()
    tab.catch_up()
    tab.js("view.cursor.set({time: view.history.frame(30).t, selected: 3})")
    stage.restart(num_requests=10)
    stage.run(5)
    tab.wait("view.history.newest === 5")
    assert tab.js("view.history.frames.length") == 5


def test_where_no_websocket_gets_through_it_polls(stage: Stage, open_tab: Callable[..., Tab], browser: Any) -> None:
    scripted(stage)
    stage.run(3)
    tab = open_tab("/compare")  # any page of this server, to set up the next one
    tab.context.add_init_script(
        "window.WebSocket = class { constructor() { setTimeout(() => this.onclose?.(), 1); } };"
        "window.WebSocket.OPEN = 1;"
    )
    tab.page.goto(stage.url)
    tab.catch_up()
    stage.run(2)
    tab.catch_up()
    assert tab.js("view.source.status") == "live"


def test_five_tabs_of_one_browser_all_go_on(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    stage.restart(num_requests=100)
    stage.run(5)
    first = open_tab()
    pages = [first.page] + [first.context.new_page() for _ in range(5)]
    for page in pages[1:]:
        page.goto(stage.url)
    for _ in range(3):
        stage.run(5)
        for page in pages:
            page.wait_for_function(
                f"document.querySelector('.engine-panels').board?.view.history.newest === {stage.last.step}"
            )


def test_what_an_error_says_is_text(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    scripted(stage)
    stage.run(1)
    record = stage.traffic.step()
    assert record is not None
    event = Event(EventKind.FAILED, None, {"error": HOSTILE})
    stage.source.ring.append(replace(record, events=(event,)))
    tab = open_tab()
    tab.catch_up()
    assert HOSTILE in tab.panel("why").inner_text()
    assert tab.js("window.hacked ?? null") is None
    assert tab.panel("why").locator("img, b").count() == 0


@pytest.mark.parametrize("dark", [False, True])
def test_accessibility(stage: Stage, open_tab: Callable[..., Tab], dark: bool) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    stage.restart(num_requests=30, num_blocks=24)
    stage.run(40)
    tab = open_tab("/?dark=1" if dark else "/")
    tab.catch_up()
    for button in tab.page.get_by_role("button", name="Table").all():
        button.click()
    tab.js("view.cursor.set({selected: view.frame.pendingDecode[0]})")
    tab.catch_up()
    found = axe.Axe().run(tab.page)
    serious = [v for v in found.response["violations"] if v["impact"] in ("serious", "critical")]
    assert serious == [], [(v["id"], [n["html"][:160] for n in v["nodes"][:4]]) for v in serious]


def test_keyboard_and_tables(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    scripted(stage)
    stage.run(5)
    tab = open_tab()
    tab.catch_up()
    tab.page.locator(".ep-chip").nth(1).focus()
    tab.page.keyboard.press("Enter")
    tab.wait("view.cursor.selected === 2")
    tab.page.keyboard.press("ArrowLeft")
    tab.wait("view.frame.step === 4")
    tab.page.keyboard.press("Home")
    tab.wait("view.frame.step === 1")
    tab.page.keyboard.press("ArrowRight")
    tab.wait("view.frame.step === 2")
    tab.page.keyboard.press("Escape")
    tab.wait("view.cursor.selected === null")
    table = tab.panel("grid").get_by_role("button", name="Table")
    table.focus()
    tab.page.keyboard.press("Enter")
    assert table.get_attribute("aria-expanded") == "true"
    rows = tab.panel("grid").locator("tbody tr").all()
    assert [row.locator("td").all_inner_texts() for row in rows] == [
        ["A", "3", "11", "1", "0", "0–2"],
        ["B", "2", "6", "2", "0", "3–4"],
    ]
    tab.page.keyboard.press("End")
    tab.wait("view.cursor.isLive")
    for name in ("strip", "grid", "blocktable", *CHARTS):
        button = tab.panel(name).get_by_role("button", name="Table")
        if button.get_attribute("aria-expanded") == "false":
            button.click()
        assert tab.panel(name).locator("tbody tr").count() > 0, name


@pytest.mark.parametrize("width", [390, 768, 1280, 1920])
def test_it_fits_every_width(stage: Stage, open_tab: Callable[..., Tab], width: int) -> None:
    stage.restart(num_requests=60, num_blocks=512)
    stage.run(60)
    tab = open_tab(width=width)
    tab.catch_up()
    assert tab.js("document.documentElement.scrollWidth") <= width
    overflowing = tab.js(
        "[...document.querySelectorAll('.ep-panel canvas, .ep-chart, .ep-panel-head, .ep-tile')]"
        ".filter((node) => node.getBoundingClientRect().right > innerWidth).map((node) => node.className)"
    )
    assert overflowing == []
    assert tab.panel("grid").locator("canvas").bounding_box()["height"] <= 430


def test_a_pool_of_200_000_blocks_is_aggregated_and_opened(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    stage.restart(num_requests=20, num_blocks=200_000)
    stage.run(20)
    tab = open_tab()
    tab.catch_up()
    assert tab.js(f"{tab.fast('grid')}.lay.each") > 1
    assert tab.js(f"{tab.fast('grid')}.lay.cells * {tab.fast('grid')}.lay.each") >= 200_000
    tab.panel("grid").locator("canvas").click(position={"x": 3, "y": 3})
    tab.wait(f"{tab.fast('grid')}.lay.each === 1")
    assert tab.js(f"{tab.fast('grid')}.lay.first") == 0
    tab.page.get_by_role("button", name="show all").click()
    tab.wait(f"{tab.fast('grid')}.lay.each > 1")


def test_reduced_motion_glows_nothing(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    stage.restart(num_requests=60)
    stage.run(3)
    tabs = [open_tab(reduced_motion=motion) for motion in ("reduce", "no-preference")]
    for tab in tabs:
        tab.catch_up()
        tab.js(
            "((grid) => { const draw = grid.drawGlow; grid.seen = []; grid.drawGlow = function (ctx, now) {"
            f" draw.call(this, ctx, now); this.seen.push(this.glow.size); }}; }})({tab.fast('grid')})"
        )
    stage.run(10)
    for tab in tabs:
        tab.catch_up()
    still, moving = (max(tab.js(f"{tab.fast('grid')}.seen")) for tab in tabs)
    assert still == 0
    assert moving > 0


def test_theme_follows_the_page(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    scripted(stage)
    stage.run(2)
    tab = open_tab()
    tab.catch_up()
    light = tab.pixel("grid", 3, 3)
    tab.js("document.body.classList.add('dark')")
    tab.wait("view.theme.dark")
    tab.catch_up()
    assert tab.pixel("grid", 3, 3) != light
    assert tab.pixel("grid", 3, 3) == tab.rgb("view.color(1)")


def test_two_runs_side_by_side(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    tab = open_tab("/compare")
    tab.page.wait_for_selector(".ep-two")
    tab.page.wait_for_function("document.querySelectorAll('.ep-gantt .main-svg').length >= 2")
    assert tab.page.locator(".ep-strip .ep-run").all_inner_texts() == ["A: static, contiguous", "B: continuous, paged"]
    tab.page.get_by_role("button", name="End").click()
    tab.page.wait_for_function(
        "[...document.querySelectorAll('.ep-strip .ep-headline')].map((n) => n.textContent.slice(0, 7)).join()"
        " === 'Step 32,Step 20'"
    )
    ranges = tab.page.evaluate("[...document.querySelectorAll('.ep-gantt .ep-chart')].map((n) => n.layout.xaxis.range)")
    assert ranges[0] == ranges[1]
    tab.page.locator(".ep-chip").first.click()
    tab.page.wait_for_function("document.querySelectorAll('.ep-chip[aria-pressed=true]').length === 1")
    curves = tab.page.evaluate("document.querySelector('.ep-curves .ep-chart').data.map((t) => Math.max(...t.x))")
    assert curves[0] > curves[1]
