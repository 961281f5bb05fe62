"""Switches, workloads and comparisons of the page, without a browser."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from engine.serving.cost_fit import CostFit
from engine.serving.load import LoadRunner
from engine.serving.service import EngineService
from engine.serving.workload import generate
from engine.settings import EngineSettings
from engine.simulated_runner import CostModel, SimulatedClock, SimulatedRunner
from engine.telemetry.figures import RunFigures, Targets, figures_of
from viz import compare_tab, controls, header, security
from viz.compare import SIZES, CompareRequest, Comparison
from viz.compare_presets import QUESTIONS, WORKLOADS, Question, pool_for
from viz.compare_words import ROWS, Side, headline, reasons, table
from viz.cost_words import cost_words
from viz.load_panel import LoadPanel
from viz.presets import PRESETS, Preset

NUMBERS: dict[str, Any] = {
    "arrivals": "poisson",
    "num_requests": 3,
    "rate_per_s": 500,
    "users": 2,
    "pause_s": 0,
    "prompt_low": 4,
    "prompt_high": 8,
    "output_low": 2,
    "output_high": 4,
    "share": 0.5,
    "shared_tokens": 4,
    "seed": 0,
}


@pytest.fixture
def service() -> Iterator[EngineService]:
    service = EngineService(SimulatedRunner(SimulatedClock()), None, EngineSettings(num_blocks=256, max_num_seqs=4))
    service.start()
    yield service
    service.stop()


def state(**changes: Any) -> dict[str, Any]:
    sizes = {"block_size": 16, "num_blocks": 512, "max_num_seqs": 8, "max_num_batched_tokens": 512}
    switches = {"policy": "mixed", "kv_layout": "paged", "prefix_caching": True, "decode_selection": "round_robin"}
    rest = {"paused": False, "step_delay_s": 0.0, "draining": False, "draining_for": {}, "max_model_len": 4096}
    return sizes | switches | rest | changes


def shown(**changes: Any) -> dict[str, Any]:
    """What the switches show in that state, by their order in `Controls.shown`."""
    names = ("policy", "layout", "sharing", "pace", "pause", "step", *SIZES, "selection")
    updates = controls.values(state(**changes), locked=False)
    return dict(zip(names, updates, strict=True))


def test_the_switches_show_the_state() -> None:
    values = shown(policy="static", kv_layout="contiguous", prefix_caching=False, step_delay_s=1.0, num_blocks=99)
    assert values["policy"]["value"] == "static"
    assert values["layout"]["value"] == "contiguous"
    assert values["sharing"]["value"] == "off"
    assert values["pace"]["value"] == 1.0
    assert values["num_blocks"]["value"] == 99


def test_a_change_that_drains_shows_already() -> None:
    values = shown(kv_layout="paged", draining=True, draining_for={"kv_layout": "contiguous", "num_blocks": 7})
    assert values["layout"]["value"] == "contiguous"
    assert values["num_blocks"]["value"] == 7


def test_sharing_can_only_be_switched_where_blocks_can_be_shared() -> None:
    assert shown()["sharing"]["interactive"] is True
    assert shown(kv_layout="contiguous")["sharing"]["interactive"] is False
    assert shown(draining_for={"kv_layout": "contiguous"})["sharing"]["interactive"] is False


def test_one_step_is_offered_while_paused_and_unlocked() -> None:
    assert shown()["step"]["interactive"] is False
    paused = shown(paused=True)
    assert paused["pause"]["value"] == "Go on"
    assert paused["step"]["interactive"] is True
    assert controls.values(state(paused=True), locked=True)[5]["interactive"] is False


def test_a_pace_that_is_none_of_the_three_selects_none() -> None:
    assert shown(step_delay_s=0.33)["pace"]["value"] is None


def test_the_status_has_no_text_of_anybody_and_counts_people(service: EngineService) -> None:
    status = header.status_of(service, locked=True, load={"total": 3})
    assert status["locked"] is True
    assert status["load"] == {"total": 3}
    assert (status["num_running"], status["num_waiting"]) == (0, 0)
    assert status["down"] is None
    assert set(status) <= {*header.SHOWN, "num_waiting", "num_running", "locked", "load", "down", "can_restart"}


def test_who_was_let_in_counts_as_running_with_half_a_prompt_read() -> None:
    class Half:
        def state(self) -> dict[str, Any]:
            return state(pending_prefill=[3, 4, 5], pending_decode=[1], queue=[4, 5])

        def health(self) -> None:
            return None

    status = header.status_of(Half(), locked=False)
    assert (status["num_running"], status["num_waiting"]) == (2, 2)


# -- workloads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
@pytest.mark.parametrize(
    "sizes", [{}, {"num_blocks": 8, "max_model_len": 128}, {"block_size": 1, "num_blocks": 64, "max_model_len": 64}]
)
def test_every_preset_fits_the_engine_whatever_its_sizes(preset: Preset, sizes: dict[str, int]) -> None:
    now = state(**sizes)
    now |= preset.settings(now)
    workload = generate(preset.spec(now))
    assert workload.requests
    for request in workload.requests:
        assert request.num_prompt_tokens + request.num_output_tokens <= now["max_model_len"]
        assert request.num_prompt_tokens < now["num_blocks"] * now["block_size"]


def test_memory_pressure_outgrows_its_pool() -> None:
    (preset,) = (preset for preset in PRESETS if preset.name == "memory_pressure")
    now = state() | preset.settings(state())
    workload = generate(preset.spec(now))
    first = workload.requests[: now["max_num_seqs"]]
    pool = now["num_blocks"] * now["block_size"]
    assert sum(request.num_prompt_tokens for request in first) <= pool
    assert sum(request.num_prompt_tokens + request.num_output_tokens for request in first) > pool


def panel(service: EngineService, locked: bool = False) -> tuple[LoadPanel, LoadRunner]:
    runner = LoadRunner(service, range(50))
    return LoadPanel(service, runner, locked), runner


def test_a_preset_changes_the_pool_only_where_switches_are_free(service: EngineService) -> None:
    (preset,) = (preset for preset in PRESETS if preset.name == "memory_pressure")
    for locked, blocks in ((True, 256), (False, 96)):
        tab, runner = panel(service, locked)
        tab.run_preset(preset)
        tab.stop()
        assert runner.wait(30)
        assert service.state()["num_blocks"] == blocks


def test_a_workload_set_by_hand_runs(service: EngineService) -> None:
    tab, runner = panel(service)
    tab.run_own(NUMBERS)
    assert runner.wait(30)
    assert tab.progress()["finished"] == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_requests": 99_999}, "at most 2000 requests"),
        ({"prompt_low": 9, "prompt_high": 3}, "low end first"),
        ({"share": None}, "a number is missing: share"),
        ({"arrivals": "sometimes"}, "sometimes"),
        ({"rate_per_s": 0}, "rate_per_s"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_in_words(
    service: EngineService, changes: dict[str, Any], words: str
) -> None:
    tab, _ = panel(service)
    with pytest.raises(gr.Error, match=words):
        tab.run_own(NUMBERS | changes)


def test_an_uploaded_trace_runs_and_a_hostile_one_is_refused_without_its_path(
    service: EngineService, tmp_path: Path
) -> None:
    tab, runner = panel(service)
    good = tmp_path / "trace.csv"
    good.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,8,2\n2024-01-01 00:00:01,8,2\n")
    tab.run_trace(str(good), 10, 1000)
    assert runner.wait(30)
    assert tab.progress()["finished"] == 2
    bad = tmp_path / "secret-name.csv"
    bad.write_text("<script>alert(1)</script>")
    for path in (str(bad), str(tmp_path / "gone-name.csv"), None):
        with pytest.raises(gr.Error) as refusal:
            tab.run_trace(path, 10, 1)
        assert "script" not in refusal.value.message
        assert "-name" not in refusal.value.message


# -- comparison --------------------------------------------------------------------------------------------------


def ask(question: Question, **changes: Any) -> CompareRequest:
    sizes = {key: state()[key] for key in SIZES} | dict(question.sizes)
    asked = CompareRequest(question.workload, 0, question.a, question.b, sizes, Targets())
    return replace(asked, **changes)


def result(comparison: Comparison, asked: CompareRequest) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        return [value async for value in comparison.run(asked)][-1]

    return asyncio.run(run())


def by_key(value: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in value["rows"]}


def test_the_scheduler_example_is_32_against_20_steps(service: EngineService) -> None:
    value = result(Comparison(service, LoadRunner(service, range(9)), False), ask(QUESTIONS[0]))
    steps = by_key(value)["num_steps"]
    assert (steps["a"], steps["b"], steps["better"]) == ("32", "20", "b")
    assert value["headline"].startswith("Simulated: Continuous is 1.68 times as fast")
    assert "20 steps against 32" in value["headline"]
    assert "prompts of 1 token, answers of 4 to 16 tokens;" in value["basis"]
    assert value["labels"] == ["static", "continuous", "continuous ÷ static"]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_every_question_has_an_answer_that_differs(service: EngineService, question: Question) -> None:
    value = result(Comparison(service, LoadRunner(service, range(9)), False), ask(question))
    assert value["headline"]
    assert value["reasons"], "a question whose two sides do not differ shows nothing"
    assert {row["key"] for row in value["rows"]} | {"goodput_per_s"} == set(ROWS)


def test_the_waste_of_contiguous_is_told_with_its_share(service: EngineService) -> None:
    (question,) = (question for question in QUESTIONS if question.name == "memory")
    value = result(Comparison(service, LoadRunner(service, range(9)), False), ask(question))
    assert any("reserved but unused" in reason for reason in value["reasons"])
    assert by_key(value)["internal_fragmentation"]["better"] == "b"


def test_runs_are_handed_to_the_panels(service: EngineService) -> None:
    comparison = Comparison(service, LoadRunner(service, range(9)), False)
    kept: list[int] = []
    comparison.add_run = lambda records: f"run{kept.append(len(records)) or len(kept)}"
    value = result(comparison, ask(QUESTIONS[0]))
    assert value["runs"] == [{"id": "run1", "label": "static"}, {"id": "run2", "label": "continuous"}]
    assert kept == [32, 20]


def test_on_the_real_engine_both_sides_run_and_the_settings_come_back(service: EngineService) -> None:
    service.control({"step_delay_s": 0.01})
    comparison = Comparison(service, LoadRunner(service, range(9)), False)
    value = result(comparison, ask(QUESTIONS[0], on_real_model=True))
    wasted = by_key(value)["wasted_slot_steps"]  # not the steps: their number hangs on how fast requests are sent
    assert wasted["a"] != "0"
    assert wasted["b"] == "0"
    assert "Measured on the real model" in value["basis"]
    assert value["headline"].startswith("Measured on the real model: ")
    now = service.state()
    assert (now["policy"], now["max_num_seqs"], now["num_blocks"]) == ("mixed", 4, 256)
    assert now["step_delay_s"] == 0.01


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workload": "<b>unknown</b>"}, "choose one of the workloads"),
        ({"sizes": {"block_size": 0, "num_blocks": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1}}, "block_size"),
        ({"sizes": {"block_size": 1, "num_blocks": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1}}, "num_blocks"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused_in_words(
    service: EngineService, changes: dict[str, Any], words: str
) -> None:
    value = result(Comparison(service, LoadRunner(service, range(9)), False), ask(QUESTIONS[0], **changes))
    assert words in value["error"]


def test_a_locked_server_compares_in_simulation_only(service: EngineService) -> None:
    comparison = Comparison(service, LoadRunner(service, range(9)), True)
    assert "locked" in result(comparison, ask(QUESTIONS[0], on_real_model=True))["error"]
    assert "headline" in result(comparison, ask(QUESTIONS[0]))


def figures(**changes: Any) -> RunFigures:
    from engine.serving.simulate import simulate

    workload = generate(WORKLOADS[QUESTIONS[0].workload](state()))
    return replace(figures_of(simulate(workload, EngineSettings(max_num_seqs=4)).records), **changes)


@pytest.mark.parametrize(
    ("error", "words"), [(0.12, "The median step was 12 % off."), (0.92, "Times are rough on this machine just now")]
)
def test_a_cost_model_is_told_in_plain_units(error: float, words: str) -> None:
    model = CostModel(0.041, 0.009, 1.47e-5)
    told = cost_words(model, CostFit(model, 1234, error))
    assert told.startswith("41 ms a step, 9 ms for each token computed in it, 14.7 µs for each pair of tokens")
    assert "last 1,234 steps" in told
    assert told.split("steps. ")[1].startswith(words)
    assert "assumed" in cost_words(model, None)


def test_equal_runs_are_not_called_different() -> None:
    a, b = Side("paged", figures()), Side("contiguous", figures())
    assert headline(a, b).startswith("Both take about as long")
    assert reasons(a, b, Targets()) == []
    assert all(row["better"] is None for row in table(a, b, Targets()))


def test_a_difference_that_cannot_be_read_is_not_told() -> None:
    a, b = Side("paged", figures(itl_max_s=0.0026)), Side("contiguous", figures(itl_max_s=0.0034))
    assert reasons(a, b, Targets()) == []
    assert reasons(a, Side("contiguous", figures(itl_max_s=0.0036)), Targets()) != []


def test_a_ratio_without_a_ground_is_a_dash() -> None:
    a, b = Side("x", figures(num_preemptions=0)), Side("y", figures(num_preemptions=3))
    (row,) = (row for row in table(a, b, Targets()) if row["key"] == "num_preemptions")
    assert (row["a"], row["b"], row["ratio"], row["better"]) == ("0", "3", "–", "a")
    missing = Side("y", figures(itl_p50_s=None))
    (row,) = (row for row in table(a, missing, Targets()) if row["key"] == "itl_p50_s")
    assert (row["b"], row["ratio"], row["better"]) == ("–", "–", None)


@pytest.mark.parametrize(
    ("b", "names"),
    [
        ({"policy": "mixed"}, ("static", "continuous")),
        ({"prefix_caching": False}, ("sharing on", "sharing off")),
        ({"policy": "mixed", "kv_layout": "contiguous"}, ("static + paged", "continuous + contiguous")),
        ({}, ("the first", "the second")),
    ],
)
def test_runs_are_named_by_what_differs_and_never_by_a_letter_as_requests_are(
    service: EngineService, b: dict[str, Any], names: tuple[str, str]
) -> None:
    one = {"policy": "static", "kv_layout": "paged", "prefix_caching": True}
    value = result(Comparison(service, LoadRunner(service, range(9)), False), ask(QUESTIONS[0], a=one, b=one | b))
    assert value["labels"] == [*names, f"{names[1]} ÷ {names[0]}"]
    said = " ".join([value["headline"], *value["reasons"], *value["labels"]])
    assert re.findall(r"\b[AB]\b", said) == []


@pytest.mark.parametrize(("left", "right", "is_shown"), [(0.0, 0.0, False), (0.0, 1.5, True), (2.0, 2.0, True)])
def test_goodput_names_its_targets_and_is_left_out_where_nobody_met_them(
    left: float, right: float, is_shown: bool
) -> None:
    sides = [Side(name, figures(goodput_per_s=value)) for name, value in (("x", left), ("y", right))]
    rows = [row for row in table(*sides, Targets(ttft_s=1.5, itl_s=0.05)) if row["key"] == "goodput_per_s"]
    assert bool(rows) == is_shown
    assert all("TTFT ≤ 1.50 s and ITL ≤ 50 ms" in row["help"] for row in rows)


def test_choosing_memory_pressure_takes_the_pool_that_makes_it() -> None:
    typed = {"block_size": 16, "num_blocks": 512, "max_num_seqs": 8, "max_num_batched_tokens": 512}
    assert pool_for("Memory pressure", typed, typed) == 96
    assert pool_for("Memory pressure", typed | {"block_size": 32}, typed) == 48
    assert pool_for("Memory pressure", typed | {"num_blocks": 40}, typed) == 40
    assert pool_for("Memory pressure", typed, typed | {"num_blocks": 96}) == 96
    assert pool_for("A burst", typed | {"num_blocks": 96}, typed) == 512
    assert pool_for("A burst", typed | {"num_blocks": 200}, typed) == 200
    assert pool_for(QUESTIONS[0].workload, typed, typed) == 512


def test_memory_pressure_in_the_comparison_preempts(service: EngineService) -> None:
    sizes = {key: state()[key] for key in SIZES} | {"num_blocks": 512, "max_num_seqs": 16}
    sizes["num_blocks"] = pool_for("Memory pressure", sizes, sizes)
    asked = ask(QUESTIONS[1], workload="Memory pressure", sizes=sizes)
    value = result(Comparison(service, LoadRunner(service, range(9)), False), asked)
    assert by_key(value)["num_preemptions"]["b"] != "0"


def test_what_was_typed_becomes_a_request_and_emptied_fields_do_not_break_it() -> None:
    typed = {
        "workload": QUESTIONS[0].workload,
        "seed": None,
        "where": "real",
        "a_policy": "static",
        "a_kv_layout": "paged",
        "a_prefix_caching": "off",
        "b_policy": "mixed",
        "b_kv_layout": "contiguous",
        "b_prefix_caching": "on",
        "ttft_ms": None,
        "itl_ms": 50,
        **dict.fromkeys(SIZES, 4),
    }
    asked = compare_tab._request(typed)
    assert asked.a == {"policy": "static", "kv_layout": "paged", "prefix_caching": False}
    assert asked.b["prefix_caching"] is True
    assert (asked.seed, asked.on_real_model, asked.targets) == (0, True, Targets(1.0, 0.05))


# -- headers -----------------------------------------------------------------------------------------------------


def test_the_policy_keeps_scripts_pictures_and_sockets_at_home() -> None:
    policy = security.policy("localhost:7860")
    assert "default-src 'self'" in policy
    assert "ws://localhost:7860" in policy
    assert "object-src 'none'" in policy


@pytest.mark.parametrize("host", ["evil.com; script-src *", "a b", "x\r\ny", "", "[::1"])
def test_a_forged_host_does_not_widen_the_policy(host: str) -> None:
    assert "ws:" not in security.policy(host)
