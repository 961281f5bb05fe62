"""The live panels for everybody: keyboard, screen readers, every width, reduced motion, light and dark."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ui.stage import Stage, Tab, scripted

CHARTS = ("memory", "latency", "gantt", "firsttoken", "anatomy")


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
    found_bad = [v for v in found.response["violations"] if v["impact"] != "minor"]
    assert found_bad == [], [(v["id"], [n["html"][:160] for n in v["nodes"][:4]]) for v in found_bad]


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
    tab.wait("board")
    for button in tab.page.get_by_role("button", name="Picture").all():  # folded on a narrow screen
        button.click()
    tab.catch_up()
    assert tab.js("document.documentElement.scrollWidth") <= width
    overflowing = tab.js(
        "[...document.querySelectorAll('.ep-panel canvas, .ep-chart, .ep-panel-head, .ep-tile')]"
        ".filter((node) => node.getBoundingClientRect().right > innerWidth).map((node) => node.className)"
    )
    assert overflowing == []
    assert tab.panel("grid").locator("canvas").bounding_box()["height"] <= 430


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


def test_on_a_narrow_screen_the_words_stand_and_pictures_open(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    scripted(stage)
    stage.run(6)
    tab = open_tab(width=390)
    tab.wait("view?.history.newest === 6 && board.hasSpoken")
    assert tab.panel("memory").locator(".ep-headline").inner_text().startswith("Of 128 token places, ")
    assert tab.panel("memory").locator(".ep-chart").is_hidden()
    assert tab.js("[...board.root.children].findIndex((n) => n.classList.contains('ep-why'))") == 3  # before the strip
    picture = tab.panel("memory").get_by_role("button", name="Picture")
    picture.focus()
    tab.page.keyboard.press("Enter")
    assert picture.get_attribute("aria-expanded") == "true"
    tab.wait(f"{tab.slow('memory')}.chart.numUpdates > 0")
    tab.page.locator(".ep-chip").nth(1).click()
    bar = tab.page.get_by_role("navigation", name="Parts of the page")
    bar.get_by_role("button", name="Why B?").click()
    tab.wait("document.activeElement.classList.contains('ep-why')")
    tab.page.set_viewport_size({"width": 1280, "height": 900})
    tab.wait("[...board.root.children].findIndex((n) => n.classList.contains('ep-why')) === 4")
    assert bar.is_hidden()


def test_panels_out_of_sight_say_what_is_true(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    stage.restart(num_requests=60)
    stage.run(20)
    tab = open_tab()
    tab.page.set_viewport_size({"width": 1280, "height": 300})
    tab.wait("view?.history.newest === 20 && board.hasSpoken")
    for step in (20, 25):
        tab.wait(f"board.root.querySelector('.ep-anatomy .ep-headline').textContent.startsWith('Step {step} took ')")
        assert "Appears with the first step." not in tab.page.locator(".ep-headline").all_inner_texts()
        stage.run(5)
    assert tab.js(f"{tab.slow('anatomy')}.chart.numUpdates") == 0  # nobody looked at its picture


def test_sharing_is_told_as_it_was_at_the_step_shown(stage: Stage, open_tab: Callable[..., Tab]) -> None:
    stage.restart(num_requests=60, prefix_caching=True)
    stage.run(5)
    tab = open_tab()
    tab.catch_up()
    assert "sharing" not in tab.page.inner_text(".ep-what")  # nobody has told
    for shares in (False, True):
        stage.traffic.engine.change({"prefix_caching": shares})
        stage.run(5)
    tab.catch_up()
    assert "sharing on" in tab.page.inner_text(".ep-what")
    tab.js("view.cursor.set({time: view.history.frame(8).t})")
    tab.catch_up()
    assert "sharing off" in tab.page.inner_text(".ep-what")
