"""The whole page in a real browser: chat, many at once, switches, workloads, comparison; and that it stays at home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http_server import wait_until
from tests.ui.page_server import PageServer, serving_page
from viz.options import PageOptions

HOSTILE = "<img src=x onerror=alert(1)> <b>bold</b> ${7*7} {{value}} **stars** `code`"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    with serving_page(tmp_path_factory.mktemp("page")) as server:
        yield server


class Tab:
    """One open page, with what it complained about and whom it asked."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 1000}, **context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector("#send")
        self.page.wait_for_selector(".pg-empty")

    def ask(self, text: str) -> None:
        self.page.fill("#message textarea", text)
        self.page.click("#send")

    def press_until(self, button: str, shown: str) -> None:
        """Press a button of a part that was just opened: Gradio may not listen yet when it is first seen."""
        from playwright.sync_api import TimeoutError as PlaywrightTimeout

        for _ in range(5):
            self.page.click(button)
            try:
                self.page.wait_for_selector(shown, timeout=12_000)
            except PlaywrightTimeout:
                continue
            return
        raise AssertionError(f"{button} did not bring {shown}")

    def choose(self, switch: str, name: str) -> None:
        self.page.locator(f"#switch-{switch} label", has_text=name).first.click()

    def chosen(self, switch: str) -> str:
        return str(self.page.inner_text(f"#switch-{switch} label.selected"))

    def wait_chosen(self, switch: str, name: str) -> None:
        self.page.wait_for_selector(f"#switch-{switch} label.selected:has-text('{name}')")


@pytest.fixture
def tab(browser: Any, server: PageServer) -> Iterator[Tab]:
    server.speaker.gate.set()
    server.speaker.text = ""
    server.service.control({"policy": "mixed", "kv_layout": "paged", "prefix_caching": True, "paused": False})
    server.service.control({"num_blocks": 128, "max_num_seqs": 4, "step_delay_s": 0.0})
    tab = Tab(browser, server.url)
    yield tab
    tab.context.close()
    wait_until(lambda: not server.service.state()["pending_decode"] and not server.service.state()["pending_prefill"])


def test_an_answer_streams_in_with_its_figures_and_the_page_asks_nobody_else(tab: Tab, server: PageServer) -> None:
    tab.ask("Hello")
    tab.page.wait_for_selector(".pg-assistant .pg-metrics")
    assert tab.page.inner_text(".pg-user .pg-text") == "Hello"
    assert tab.page.inner_text(".pg-assistant .pg-text").startswith("This is answer ")
    figures = tab.page.inner_text(".pg-metrics")
    for words in ("queued", "first token", "tokens/s", "cached 0 of", "finished by itself"):
        assert words in figures
    assert tab.page.input_value("#message textarea") == ""
    assert tab.page.is_visible("#send")
    host = server.url.removeprefix("http://")
    assert all(host in url or url.startswith(("data:", "blob:")) for url in tab.asked)
    assert tab.complaints == []


def test_what_people_and_models_write_is_shown_as_text(tab: Tab, server: PageServer) -> None:
    server.speaker.text = HOSTILE
    tab.ask(HOSTILE)
    tab.page.wait_for_selector(".pg-assistant .pg-metrics")
    assert tab.page.inner_text(".pg-user .pg-text") == HOSTILE
    assert tab.page.inner_text(".pg-assistant .pg-text") == HOSTILE
    assert tab.page.locator(".pg-chat img, .pg-chat b:has-text('bold'), .pg-chat code").count() == 0
    tab.page.click(".pg-talks .pg-small")  # the conversation's title is theirs, too
    assert "<img" in tab.page.inner_text(".pg-select")
    assert tab.page.locator(".pg-talks img").count() == 0
    assert tab.complaints == []


def test_conversations_are_kept_switched_and_regenerated(tab: Tab) -> None:
    tab.ask("First question")
    tab.page.wait_for_selector(".pg-metrics")
    first = tab.page.inner_text(".pg-assistant .pg-text")
    tab.page.click("text=Regenerate")
    tab.page.wait_for_function(
        "old => !document.querySelector('.pg-assistant .pg-text').innerText.includes(old)", arg=first
    )
    tab.page.wait_for_selector(".pg-metrics")
    assert tab.page.locator(".pg-turn").count() == 2
    tab.page.click("text=+ New conversation")
    tab.page.wait_for_selector(".pg-empty")
    tab.ask("Second question")
    tab.page.wait_for_selector(".pg-metrics")
    tab.page.select_option(".pg-select", label="First question")
    tab.page.wait_for_selector(".pg-user:has-text('First question')")
    assert tab.page.locator(".pg-user").count() == 1


def test_a_suggestion_is_asked_by_pressing_it(tab: Tab) -> None:
    words = tab.page.inner_text(".pg-suggestion >> nth=1")
    tab.page.click(".pg-suggestion >> nth=1")
    tab.page.wait_for_selector(".pg-metrics")
    assert tab.page.inner_text(".pg-user .pg-text") == words


def test_picking_an_answer_selects_its_request_in_the_panels_and_back(tab: Tab) -> None:
    tab.page.click("#send-all")
    tab.page.wait_for_function("document.querySelectorAll('.pg-card .pg-metrics').length === 8")
    chip = tab.page.locator(".pg-card .pg-chip >> nth=2")
    request = (chip.get_attribute("href") or "").removeprefix("#request-")
    chip.click()
    tab.page.wait_for_selector(f".pg-chip.ep-selected[href='#request-{request}']")
    assert tab.page.locator(".pg-chip.ep-selected").count() == 1
    button = f".ep-dashboard button[data-request='{request}']"
    tab.page.wait_for_selector(f"{button}[aria-pressed=true]")
    tab.page.locator(button).first.click()
    tab.page.wait_for_selector(".pg-chip.ep-selected", state="detached")


def test_stop_ends_the_answer_with_its_figures(tab: Tab, server: PageServer) -> None:
    server.speaker.text = "word " * 190
    tab.ask("Hello")
    tab.page.wait_for_selector(".pg-assistant .pg-text:has-text('word word')")
    tab.page.click("#stop")
    tab.page.wait_for_selector(".pg-ended-abort")
    assert tab.page.inner_text(".pg-ended") == "stopped"
    wait_until(lambda: server.service.state()["num_active_blocks"] == 0)
    tab.page.wait_for_selector("#send", state="visible")


def test_a_waiting_answer_says_where_it_stands_and_why(tab: Tab, server: PageServer) -> None:
    server.speaker.text = "word " * 190
    tab.page.click("#send-all")
    tab.page.wait_for_selector(".pg-card >> nth=7")
    for place in (1, 4):
        tab.page.wait_for_selector(f".pg-wait:has-text('number {place} in the queue: no free slot')")
    tab.page.click("#stop-all")
    tab.page.wait_for_function("document.querySelectorAll('.pg-ended-abort').length === 8")
    assert tab.complaints == []


def test_eight_prompts_at_once_share_steps_and_each_has_its_own_answer(tab: Tab, server: PageServer) -> None:
    before = server.service.state()["step"]
    tab.page.click("#send-all")
    tab.page.wait_for_function("document.querySelectorAll('.pg-card .pg-metrics').length === 8")
    answers = tab.page.locator(".pg-card .pg-text").all_inner_texts()
    assert len(set(answers)) == 8
    assert len(set(tab.page.locator(".pg-card .pg-ask").all_inner_texts())) == 8
    records = [record for record in server.service.steps().records if record.step > before]
    assert max(len(record.num_tokens) for record in records) == 4
    letters = tab.page.locator(".pg-card .pg-chip").all_inner_texts()
    assert len(set(letters)) == 8
    assert tab.complaints == []


def test_a_closed_tab_frees_its_blocks(browser: Any, tab: Tab, server: PageServer) -> None:
    other = Tab(browser, server.url)
    server.speaker.text = "word " * 190
    other.ask("Hello")
    other.page.wait_for_selector(".pg-assistant .pg-text:has-text('word word')")
    other.context.close()
    wait_until(lambda: server.service.state()["num_active_blocks"] == 0)
    reasons = [e.details["reason"] for e in server.service.steps().records[-1].events if e.kind == "finished"]
    assert reasons == ["abort"]


def test_switches_change_the_engine_and_follow_what_others_change(tab: Tab, server: PageServer) -> None:
    tab.choose("policy", "static")
    wait_until(lambda: server.service.state()["policy"] == "static")
    tab.choose("layout", "contiguous")
    wait_until(lambda: server.service.state()["kv_layout"] == "contiguous")
    tab.page.wait_for_selector(".pg-fact:has-text('static')")
    tab.page.wait_for_selector("#switch-sharing[data-off]")
    assert tab.page.locator("#switch-sharing input").first.is_disabled()
    server.service.control({"policy": "prefill_first", "kv_layout": "paged", "prefix_caching": False})
    tab.wait_chosen("policy", "prefill first")
    tab.wait_chosen("layout", "paged")
    tab.wait_chosen("sharing", "off")
    assert tab.complaints == []


def test_a_change_that_drains_says_so_until_it_took_effect(tab: Tab, server: PageServer) -> None:
    server.speaker.text = "word " * 190
    tab.ask("Hello")
    tab.page.wait_for_selector(".pg-assistant .pg-text:has-text('word')")
    server.speaker.gate.clear()
    tab.choose("layout", "contiguous")
    server.speaker.gate.set()
    tab.page.wait_for_selector(".pg-notice:has-text('Draining: KV memory → contiguous')")
    tab.wait_chosen("layout", "contiguous")
    tab.page.click("#stop")
    wait_until(lambda: server.service.state()["kv_layout"] == "contiguous")
    tab.page.wait_for_selector(".pg-notice", state="hidden")


def test_pause_and_one_step(tab: Tab, server: PageServer) -> None:
    tab.page.click("#pause")
    tab.page.wait_for_selector(".pg-notice:has-text('Paused')")
    tab.ask("Hello")
    tab.page.wait_for_selector(".pg-wait:has-text('paused')")
    before = server.service.state()["step"]
    tab.page.click("#one-step")
    wait_until(lambda: server.service.state()["step"] > before)
    assert server.service.state()["paused"] is True
    tab.page.click("#pause")
    tab.page.wait_for_selector(".pg-metrics")
    assert server.service.state()["paused"] is False


def test_a_refused_size_is_told_and_the_number_comes_back(tab: Tab, server: PageServer) -> None:
    tab.page.click("#sizes button >> nth=0")
    field = tab.page.get_by_label("Slots", exact=True)
    field.fill("99999")
    field.press("Tab")  # Gradio takes the number when the field is left
    tab.page.click("#apply-sizes")
    tab.page.wait_for_selector("text=max_num_seqs must be a whole number from 1 to 4096")
    tab.page.wait_for_function("document.querySelector('[aria-label=\"Slots\"]').value === '4'")
    assert server.service.state()["max_num_seqs"] == 4


def test_a_preset_runs_and_stops_at_once(tab: Tab, server: PageServer) -> None:
    tab.page.get_by_role("tab", name="Workloads").click()
    place = "document.querySelector('#preset-burst').offsetTop - document.querySelector('#load-progress').offsetTop"
    before = tab.page.evaluate(place)
    tab.page.click("#preset-burst")
    tab.page.wait_for_selector(".pg-load:has-text('A burst')")
    assert tab.page.evaluate(place) == before  # nothing jumped
    wait_until(lambda: len(server.service.state()["pending_decode"]) > 0)
    tab.page.click(".pg-stop")
    tab.page.wait_for_selector(".pg-load:has-text('ended')")
    wait_until(lambda: server.service.state()["num_active_blocks"] == 0)
    assert tab.complaints == []


def test_a_hostile_trace_is_refused_in_words(tab: Tab, tmp_path: Path) -> None:
    bad = tmp_path / "trace.csv"
    bad.write_text("<img src=x onerror=alert(1)>,b,c\n1,2,3\n")
    tab.page.get_by_role("tab", name="Workloads").click()
    tab.page.click("text=A production trace")
    tab.page.set_input_files("input[type=file]", str(bad))
    tab.page.wait_for_selector("text=trace.csv")
    tab.page.click("#replay-trace")
    tab.page.wait_for_selector("text=missing: TIMESTAMP, ContextTokens, GeneratedTokens")


def test_the_scheduler_example_shows_32_against_20(tab: Tab) -> None:
    tab.page.get_by_role("tab", name="Compare").click()
    tab.press_until("#question-example", ".pg-headline:has-text('20 steps against 32')")
    row = tab.page.locator(".pg-table tr", has_text="Steps").first
    assert row.locator("td").all_inner_texts()[0] == "32"
    assert row.locator("td").all_inner_texts()[1].startswith("20")


def test_a_workload_that_needs_a_small_pool_takes_it(browser: Any, tmp_path: Path) -> None:
    with serving_page(tmp_path, num_blocks=512) as server:
        tab = Tab(browser, server.url)
        tab.page.get_by_role("tab", name="Compare").click()
        tab.page.locator("#compare-settings button").first.click()
        blocks = "[...document.querySelectorAll('#compare-settings [aria-label=Blocks]')].at(-1).value"
        for workload, shown in (("Memory pressure", "96"), ("A burst", "512")):
            tab.page.locator("#compare-workload input").click()
            tab.page.get_by_role("option", name=workload).click()
            tab.page.wait_for_function(f"{blocks} === '{shown}'")
        tab.context.close()


def test_a_stopped_comparison_says_so_and_leaves_no_pictures_of_the_one_before(tab: Tab, server: PageServer) -> None:
    tab.page.get_by_role("tab", name="Compare").click()
    tab.press_until("#question-example", ".ep-two")
    tab.page.locator("#compare-settings button").first.click()
    tab.page.get_by_label("on the real model").check()
    server.speaker.step_s = 0.2
    try:
        tab.page.click("#compare-go")
        tab.page.wait_for_selector(".pg-compare:has-text('static: 0 of 8 finished')")
        assert tab.page.locator(".ep-two").count() == 0
        tab.page.click("#compare-stop")
        tab.page.wait_for_selector(".pg-error:has-text('Stopped while static ran')")
    finally:
        server.speaker.step_s = 0.005
    wait_until(lambda: server.service.state()["policy"] == "mixed" and server.service.state()["max_num_seqs"] == 4)


def test_five_tabs_of_one_browser_chat_at_the_same_time(browser: Any, server: PageServer, tab: Tab) -> None:
    tabs = [tab]
    for _ in range(4):
        other = Tab.__new__(Tab)
        other.page = tab.context.new_page()
        other.page.set_default_timeout(60_000)
        other.page.goto(server.url)
        other.page.wait_for_selector(".pg-empty")
        tabs.append(other)
    server.speaker.text = "word " * 40
    for one in tabs:
        one.ask("Hello")
    for one in tabs:
        one.page.wait_for_selector(".pg-metrics")
        assert one.page.inner_text(".pg-assistant .pg-text").strip() == ("word " * 40).strip()


def test_it_reads_well_on_a_small_screen(browser: Any, server: PageServer, tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.page.wait_for_timeout(200)
    wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert tab.page.evaluate(wide) <= 0


def test_locked_switches_are_grey_and_say_why(browser: Any, tmp_path: Path) -> None:
    with serving_page(tmp_path, PageOptions(lock_controls=True)) as server:
        tab = Tab(browser, server.url)
        assert tab.page.is_disabled("#switch-policy input[value=static]")
        assert tab.page.is_disabled("#pause")
        assert "locked" in tab.page.inner_text("#locked")
        tab.ask("Hello")
        tab.page.wait_for_selector(".pg-metrics")
        tab.context.close()


def test_the_page_has_a_content_security_policy(server: PageServer) -> None:
    answer = httpx.get(server.url)
    assert "default-src 'self'" in answer.headers["content-security-policy"]
