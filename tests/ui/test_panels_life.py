"""The live panels over time: memory, background, restarts, many tabs, no WebSocket, hostile words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.telemetry.record import Event, EventKind
from tests.ui.stage import Stage, Tab, scripted

HOSTILE = "<img src=x onerror=window.hacked=1> ${7*7} {{value}} **bold** <b>b</b>"


def test_memory_does_not_grow(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    """Eighty redraws of every chart, as many as in eighty seconds, with 5,000 steps on the way.

    The charts' library keeps the sizes of up to 10,000 texts it has drawn, and every axis that moves brings new ones:
    so a little growth is allowed here, and none where nothing new is drawn.
    """
    stage.restart(capacity=300, num_requests=100_000)
    stage.run(300)
    tab = open_tab()
    tab.catch_up()
    tab.js("(clearInterval(board.timer), 0)")  # charts are drawn when this test says so
    cdp = tab.context.new_cdp_session(tab.page)

    def redraw(times: int, num_steps: int = 60) -> None:
        for _ in range(times):
            stage.run(num_steps)
            tab.wait(f"view.history.newest === {stage.last.step}")
            before = tab.js("board.slow.map((panel) => panel.chart.numUpdates)")
            tab.js("board.drawCharts()")
            tab.wait(f"board.slow.every((panel, i) => panel.chart.numUpdates > {before}[i] && !panel.chart.isBusy)")

    def measure() -> tuple[float, int]:
        """What is left after collecting garbage: MB of the heap, nodes of the DOM with those that are detached."""
        for _ in range(2):
            cdp.send("HeapProfiler.collectGarbage")
        return cdp.send("Runtime.getHeapUsage")["usedSize"] / 1e6, cdp.send("Memory.getDOMCounters")["nodes"]

    redraw(20)
    seen = []
    for _ in range(3):
        redraw(20)
        seen.append(measure())
    heaps, nodes = zip(*seen, strict=True)
    assert tab.js("view.history.frames.length") == 300
    assert max(heaps) < heaps[0] + 1.5, seen
    assert max(nodes) < nodes[0] + 1500, seen
    redraw(20, num_steps=0)
    heap, _ = measure()
    redraw(40, num_steps=0)
    assert measure()[0] < heap + 0.2


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
