"""The lessons: every experiment runs and shows what it says; every challenge knows both whether it was met and not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from engine.scheduling.sampling_params import InvalidRequest, SamplingParams
from engine.serving.service import EngineService
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner
from engine.telemetry.figures import figures_of, token_gaps
from engine.telemetry.record import EventKind, WaitReason
from viz.lessons import LESSONS
from viz.lessons.lesson import Attempt, Lesson, attempt, experiment, knob_values, run
from viz.lessons.memory import FRAGMENTATION, PAGING, PREEMPTION, SHARING
from viz.lessons.scheduling import CHUNKED_PREFILL, CONTINUOUS, KV_CACHE, PADDING, PENDING_DECODE, PREFILL_AND_DECODE
from viz.lessons.tab import KNOBS, Lessons, find

ROOT = Path(__file__).resolve().parents[3]
BY_NAME = {lesson.name: lesson for lesson in LESSONS}

MET: dict[str, dict[str, Any]] = {
    "prefill-and-decode": {"max_num_batched_tokens": 128},
    "kv-cache": {"answers": 2},
    "padding": {"max_num_seqs": 1},
    "continuous": {"max_num_seqs": 2},
    "pending-decode": {"policy": "prefill_first"},
    "chunked-prefill": {"max_num_batched_tokens": 10},
    "fragmentation": {"num_blocks": 31},
    "paging": {"asked": 1, "num_blocks": 12, "block_size": 32},
    "sharing": {"block_size": 96},
    "preemption": {"num_blocks": 12},
}
"""Knobs that meet each challenge."""

NEARLY: dict[str, dict[str, Any]] = {
    "prefill-and-decode": {"max_num_batched_tokens": 40},
    "kv-cache": {"answers": 1},
    "padding": {"max_num_seqs": 2},
    "continuous": {"max_num_seqs": 3},
    "pending-decode": {"decode_selection": "sticky"},
    "chunked-prefill": {"max_num_batched_tokens": 8},
    "fragmentation": {"num_blocks": 64},
    "paging": {"asked": 6, "num_blocks": 12, "block_size": 32},
    "sharing": {"block_size": 64},
    "preemption": {"num_blocks": 16},
}
"""Knobs that come close and do not."""


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_the_experiment_runs_to_its_end(lesson: Lesson):
    runs = experiment(lesson)
    assert len(runs) == (1 if lesson.b is None else 2)
    for label, records in runs:
        assert label
        assert figures_of(records).num_finished == lesson.workload.num_requests


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_challenge_is_not_met_by_doing_nothing(name: str):
    lesson = BY_NAME[name]
    made, _ = attempt(lesson, knob_values(lesson))
    verdict = lesson.challenge.check(made)
    assert not verdict.done
    assert verdict.words.startswith("Not yet: ")


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_challenge_is_not_met_by_nearly_doing_it(name: str):
    made, _ = attempt(BY_NAME[name], NEARLY[name])
    assert not BY_NAME[name].challenge.check(made).done


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_a_challenge_can_be_met_with_its_knobs_alone(name: str):
    lesson = BY_NAME[name]
    assert set(MET[name]) <= set(lesson.challenge.knobs)
    made, runs = attempt(lesson, MET[name])
    verdict = lesson.challenge.check(made)
    assert verdict.done, verdict.words
    assert verdict.words.startswith("Done: ")
    assert len(runs) == 2


def test_knobs_that_are_not_the_challenges_change_nothing():
    made, _ = attempt(PREEMPTION, {"policy": "static", "max_num_batched_tokens": 8})
    assert made.settings is not None
    assert (made.settings.policy, made.settings.max_num_batched_tokens) == ("mixed", 64)


def test_a_static_batch_that_is_none_does_not_count():
    settings, records = run(PADDING, {"policy": "mixed"})
    assert not PADDING.challenge.check(Attempt(records, (), settings)).done


def test_contiguous_memory_that_is_none_does_not_count():
    _, records = run(FRAGMENTATION, {"kv_layout": "paged", "num_blocks": 31, "block_size": 8, "max_num_seqs": 8})
    assert "not contiguous" in FRAGMENTATION.challenge.check(Attempt(records)).words


@pytest.mark.parametrize("knobs", [{"num_blocks": 0}, {"block_size": -3}, {"num_blocks": 1}, {"max_num_seqs": 10**9}])
def test_settings_that_cannot_be_are_refused_in_words(knobs: dict[str, int]):
    with pytest.raises(InvalidRequest):
        attempt(PREEMPTION, knobs)


@pytest.mark.parametrize("answers", [0, 17, True, "2"])
def test_so_are_answers_of_no_length(answers: Any):
    with pytest.raises(InvalidRequest, match="as long"):
        attempt(KV_CACHE, {"answers": answers})


# -- what the texts say ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_note_source_and_test_are_there(lesson: Lesson):
    for path in (lesson.note, lesson.source, lesson.test):
        assert (ROOT / path).is_file(), path
    assert len(lesson.look) >= 3


def test_there_are_ten_in_order():
    assert [lesson.title.split(" ")[0] for lesson in LESSONS] == [str(n) for n in range(1, 11)]
    assert len(BY_NAME) == 10


def records_of(lesson: Lesson, side: int):
    return experiment(lesson)[side][1]


def test_the_cache_lessons_numbers():
    records = records_of(KV_CACHE, 0)
    assert "step 96 would compute 143 rows" in KV_CACHE.look[2]
    assert records[95].computed[1] == 143
    assert all(sum(record.num_tokens.values()) == 1 for record in records[1:])


def test_static_members_get_their_first_token_together():
    firsts = [r.step for r in records_of(PADDING, 0) for e in r.events if e.kind is EventKind.FIRST_TOKEN]
    assert len(set(firsts)) == 1
    assert records_of(PADDING, 1)[-1].wasted_slot_steps == 0


def test_the_continuous_lessons_numbers():
    numbers = [int(n) for n in re.findall(r"\d+", CONTINUOUS.claim)]
    assert numbers == [len(records_of(CONTINUOUS, 1)), len(records_of(CONTINUOUS, 0))]
    assert "56 tokens" in CONTINUOUS.challenge.hint
    assert figures_of(records_of(CONTINUOUS, 1)).output_tokens == 56


def test_first_tokens_come_late_on_the_left_and_gaps_are_longer_on_the_right():
    left, right = (figures_of(records_of(PENDING_DECODE, side)) for side in (0, 1))
    assert left.ttft_p50_s > 2 * right.ttft_p50_s
    assert left.itl_p95_s < right.itl_p95_s


def test_the_chunk_lessons_numbers():
    gaps = [max(g for own in token_gaps(records_of(CHUNKED_PREFILL, side)).values() for g in own) for side in (0, 1)]
    assert f"one gap of {1000 * gaps[0]:.0f} ms" in CHUNKED_PREFILL.look[1]
    assert gaps[1] < 0.015
    chunks = [r.num_tokens[4] for r in records_of(CHUNKED_PREFILL, 1) if 4 in r.active_prefill]
    assert (len(chunks), sum(chunks)) == (8, 96)


def test_the_fragmentation_lesson_shows_it():
    left, right = records_of(FRAGMENTATION, 0), records_of(FRAGMENTATION, 1)
    wait = next(w for r in left for w in r.waiting.values() if w.reason is WaitReason.NO_RUN)
    assert (wait.needed_blocks, wait.available_blocks) == (4, 3)
    assert not any(w.reason is WaitReason.NO_RUN for r in right for w in r.waiting.values())
    admitted = next(r for r in right for e in r.events if e.kind is EventKind.ADMITTED and e.request_id == 6)
    arrived = next(r for r in right for e in r.events if e.kind is EventKind.ARRIVED and e.request_id == 6)
    assert admitted.step == arrived.step


def test_the_paging_lesson_serves_four_times_as_many():
    left, right = (figures_of(records_of(PAGING, side)).most_at_once for side in (0, 1))
    assert (left, right) == (2, 8)


def test_six_blocks_are_everybodys():
    hits = [
        e.details["shared_blocks"]
        for r in records_of(SHARING, 1)
        for e in r.events
        if e.kind is EventKind.ADMITTED and e.details["cached_tokens"]
    ]
    assert set(hits) == {6}
    assert records_of(SHARING, 0)[-1].prefix_hit_tokens == 0


def test_the_preemption_lessons_steps():
    thrown = next(r for r in records_of(PREEMPTION, 1) for e in r.events if e.kind is EventKind.PREEMPTED)
    back = next(r for r in records_of(PREEMPTION, 1) if r.step > thrown.step and 4 in r.active_prefill)
    assert f"in step {thrown.step} and comes back in step {back.step}" in PREEMPTION.look[0]
    assert records_of(PREEMPTION, 0)[-1].num_preemptions == 0


# -- the page's handlers -----------------------------------------------------------------------------------------------


@pytest.fixture
def service():
    settings = EngineSettings(num_blocks=12, block_size=8, max_num_seqs=4, max_num_batched_tokens=64)
    service = EngineService(SimulatedRunner(SimulatedClock()), None, settings, model_name="simulated")
    service.start()
    yield service
    service.stop()


def test_choosing_a_lesson_shows_its_knobs_and_no_other(service: EngineService):
    lessons = Lessons(service, None)
    for lesson in LESSONS:
        updates = lessons.choose(lesson.title)
        shown = {name for name, update in zip(KNOBS, updates[-len(KNOBS) :], strict=True) if update["visible"]}
        assert shown == set(lesson.challenge.knobs)
        assert lesson.claim in updates[0]
        assert updates[5]["visible"] == lesson.challenge.works_live


def test_running_and_trying_give_pictures_and_a_verdict(service: EngineService):
    lessons = Lessons(service, None)
    kept: list[Any] = []
    lessons.add_run = lambda records: f"run-{kept.append(records) or len(kept)}"
    assert [run_["label"] for run_ in lessons.run(PREEMPTION.title)["runs"]] == ["24 blocks", "12 blocks"]
    knobs = [{"num_blocks": 12.0}.get(name) for name in KNOBS]  # numbers come as floats from a browser
    verdict, pictures = lessons.try_it(PREEMPTION.title, *knobs)
    assert verdict.startswith("✅ Done")
    assert [run_["id"] for run_ in pictures["runs"]] == ["run-3", "run-4"]
    verdict, _ = lessons.try_it(PREEMPTION.title, *[{"num_blocks": 1}.get(name) for name in KNOBS])
    assert verdict.startswith("⚠")


def test_the_live_engine_is_judged_from_when_the_lesson_was_opened(service: EngineService):
    lessons = Lessons(service, None)
    before = lessons.mark()
    assert "nothing since" in lessons.check_live(PREEMPTION.title, before)
    streams = [service.submit(range(100 * i, 100 * i + 12), SamplingParams(max_tokens=20))[0] for i in range(4)]
    for stream in streams:
        stream.result(timeout_s=20)
    assert lessons.check_live(PREEMPTION.title, before).startswith("✅ Done")
    after = lessons.mark()
    assert "nothing since" in lessons.check_live(PREEMPTION.title, after)
    service.submit([1, 2], SamplingParams(max_tokens=2))[0].result(timeout_s=20)
    assert "nobody was preempted" in lessons.check_live(PREEMPTION.title, after)
    assert lessons.check_live(PREEMPTION.title, "nonsense:" + "9" * 400)


@pytest.mark.parametrize("lesson", [lesson for lesson in LESSONS if lesson.challenge.works_live], ids=lambda x: x.name)
def test_live_checks_judge_any_records(lesson: Lesson, service: EngineService):
    service.submit([1, 2, 3], SamplingParams(max_tokens=3))[0].result(timeout_s=20)
    verdict = lesson.challenge.check(Attempt(service.steps().records))
    assert verdict.words


def test_a_title_that_is_none_is_the_first_lesson():
    assert find("<script>") is PREFILL_AND_DECODE


def test_the_first_lesson_is_met_live_even_if_its_requests_come_in_one_after_the_other() -> None:
    (first, *others) = PREFILL_AND_DECODE.workload.lengths
    rest = sum(prompt for prompt, _ in others) + sum(answer - 1 for _, answer in (first, *others))
    assert first[0] > rest
