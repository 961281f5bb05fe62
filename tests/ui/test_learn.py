"""Lessons, saved traces and recorded runs in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from engine.serving.remote_texts import RemoteTexts
from engine.serving.replay_service import ReplayService, build_replay_service
from tests.flow.traced_runs import SHARING, save
from tests.http_server import serving, wait_until
from tests.ui.page_server import PageServer, serving_page
from viz import page
from viz.lessons import LESSONS
from viz.options import PageOptions
from viz.trace_tab import SHIPPED


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    with serving_page(tmp_path_factory.mktemp("page")) as server:
        yield server


@pytest.fixture
def opened(browser: Any) -> Iterator[Any]:
    """Opens pages, and says at the end what they complained about."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    complaints: list[str] = []

    def open_(url: str, tab: str) -> Any:
        tab_page = context.new_page()
        tab_page.set_default_timeout(60_000)
        tab_page.on("pageerror", lambda error: complaints.append(str(error)))
        tab_page.goto(url)
        tab_page.get_by_role("tab", name=tab, exact=True).click()
        return tab_page

    yield open_
    context.close()
    assert complaints == []


def test_a_lesson_runs_is_failed_and_is_met(server: PageServer, opened: Any):
    lesson = opened(server.url, "Lessons")
    lesson.get_by_label("10 · Preemption and overload").click()
    lesson.wait_for_selector("#lesson-text >> text=computes it again later")
    lesson.click("#lesson-run")
    lesson.wait_for_selector("#panels-lesson >> text=24 blocks")
    lesson.wait_for_selector("#panels-lesson canvas")
    lesson.click("#lesson-try")
    lesson.wait_for_selector("#lesson-verdict >> text=nobody was preempted")
    lesson.fill("#lesson-num_blocks input", "12")
    lesson.click("#lesson-try")
    lesson.wait_for_selector("#lesson-verdict >> text=Done: 1 preempted")


def test_every_lesson_shows_its_own_text_and_knobs(server: PageServer, opened: Any):
    tab = opened(server.url, "Lessons")
    for lesson in LESSONS[::-1]:
        tab.get_by_label(lesson.title).click()
        tab.wait_for_selector(f"#lesson-text >> text={lesson.claim[:40]}")
        for knob in lesson.challenge.knobs:
            tab.wait_for_selector(f"#lesson-{knob}")
        assert tab.locator("#lesson-check").is_visible() == lesson.challenge.works_live


def test_a_lesson_can_be_sent_to_the_live_engine_and_judged_there(server: PageServer, opened: Any):
    tab = opened(server.url, "Lessons")
    tab.click("#lesson-check")
    tab.wait_for_selector("#lesson-verdict >> text=Not yet")
    before = server.service.state()["step"]
    tab.click("#lesson-send")
    wait_until(lambda: server.service.state()["step"] > before and not server.service.state()["pending_decode"])
    wait_until(lambda: not server.service.state()["pending_prefill"] and not server.service.state()["pending_decode"])
    tab.click("#lesson-check")
    tab.wait_for_selector("#lesson-verdict >> text=Done: the largest step computed")


def test_a_trace_is_dropped_and_shown(server: PageServer, opened: Any, tmp_path: Path):
    tab = opened(server.url, "Replay")
    tab.set_input_files("#trace-file input[type=file]", save(tmp_path / "mine.jsonl", 5, settings=SHARING))
    tab.wait_for_selector("#trace-words >> text=40 requests")
    tab.wait_for_selector("#panels-trace canvas")


def test_a_file_that_is_none_is_said_in_words(server: PageServer, opened: Any, tmp_path: Path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"trace":"tiny-vllm","version":1,"epoch":"<img src=x onerror=alert(1)>"}\n')
    tab = opened(server.url, "Replay")
    tab.set_input_files("#trace-file input[type=file]", bad)
    tab.wait_for_selector("#trace-words >> text=cannot be shown: line 1")
    assert tab.locator("#trace-words img").count() == 0


def test_the_shipped_run_is_one_click_away(server: PageServer, opened: Any):
    tab = opened(server.url, "Replay")
    tab.click("#trace-shipped")
    tab.wait_for_selector("#trace-words >> text=SmolLM2-135M-Instruct")
    tab.wait_for_selector("#panels-trace canvas")


def test_a_trace_opens_at_its_first_step_and_the_space_bar_plays_it(server: PageServer, opened: Any):
    tab = opened(server.url, "Replay")
    tab.click("#trace-shipped")
    where = tab.locator("#panels-trace .ep-where")
    tab.wait_for_selector("#panels-trace .ep-where:has-text('step 1 ')")
    play = tab.locator("#panels-trace").get_by_role("button", name="Play", exact=True)
    tab.locator("#panels-trace").get_by_label("Speed of playing").select_option("16 ×")
    play.focus()
    tab.keyboard.press(" ")
    tab.wait_for_function("parseInt(document.querySelector('#panels-trace .ep-where').textContent.slice(5)) > 20")
    tab.locator("#panels-trace .ep-slider").focus()
    tab.keyboard.press(" ")
    play.wait_for()
    held = where.inner_text()
    tab.get_by_role("tab", name="Live", exact=True).click()
    tab.get_by_role("tab", name="Replay", exact=True).click()
    tab.locator("#panels-trace .ep-what").click()  # the keyboard's place is nowhere in particular now
    tab.evaluate("document.activeElement.blur()")
    assert where.inner_text() == held
    tab.keyboard.press(" ")
    tab.locator("#panels-trace").get_by_role("button", name="Pause", exact=True).wait_for()
    tab.wait_for_selector("#panels-trace .ep-status:has-text('At the end')")
    play.click()
    tab.wait_for_selector("#panels-trace .ep-status:has-text('Playing')")


def serve_recorded(options: PageOptions | None = None) -> tuple[ReplayService, FastAPI]:
    service = build_replay_service(SHIPPED)
    return service, page.mount(FastAPI(), page.build(service, RemoteTexts(), options))


def test_a_recorded_run_plays_without_a_model(opened: Any):
    service, app = serve_recorded()
    with serving(app) as url:
        tab = opened(url, "Live")
        tab.wait_for_selector("#replay-about >> text=SmolLM2-135M-Instruct")
        assert tab.locator("#send").count() == 0
        assert tab.inner_text(".pg-mood") == "recorded"
        assert "Play the run" in tab.inner_text(".pg-howto")
        assert tab.locator(".pg-fact:has-text('batching')").count() == 0  # it would be that of another step
        tab.click("#replay-play")
        tab.wait_for_selector("#replay-play:has-text('Play')")
        assert service.state()["paused"]
        step = service.state()["step"]
        tab.click("#replay-step")
        wait_until(lambda: service.state()["step"] == step + 1)
        tab.locator("#replay-speed label", has_text="16").click()
        tab.click("#replay-play")
        wait_until(lambda: service.state()["step"] > step + 20)
        tab.wait_for_selector("#panels-live canvas")


def test_a_locked_recorded_run_plays_and_cannot_be_stopped(opened: Any):
    service, app = serve_recorded(PageOptions(lock_controls=True))
    with serving(app) as url:
        tab = opened(url, "Live")
        tab.wait_for_selector("#replay-about")
        assert tab.locator("#replay-play").is_disabled()
        step = service.state()["step"]
        wait_until(lambda: service.state()["step"] > step)
        tab.wait_for_selector("#panels-live canvas")
