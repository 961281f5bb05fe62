"""The live panels in a real browser: each draws what a scripted run contains, with one selection and one time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.telemetry.record import EventKind
from tests.ui.stage import Stage, Tab, scripted


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


def test_two_runs_side_by_side(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    tab = open_tab("/compare")
    tab.page.wait_for_selector(".ep-two")
    tab.page.wait_for_function("document.querySelectorAll('.ep-gantt .main-svg').length >= 2")
    assert tab.page.locator(".ep-strip .ep-run").all_inner_texts() == ["static + contiguous", "continuous + paged"]
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
