"""A recorded run, run again: every decision comes out as it was, and what was changed is found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.replay import compare, decisions, replay
from engine.scheduling.sampling_params import SamplingParams
from engine.serving.service import EngineService
from engine.settings import EngineSettings
from engine.simulated_runner import SimulatedClock, SimulatedRunner
from engine.telemetry import trace as trace_module
from engine.telemetry.checked import TraceError
from engine.telemetry.record import EventKind, Wait
from engine.telemetry.trace import TraceRecorder, iter_jsonl, iter_perfetto
from engine.telemetry.trace_file import TraceReader, load
from tests.flow.traced_runs import SHARING, run, save, trace_text

ROOT = Path(__file__).resolve().parents[2]


def first_difference(path: Path):
    with TraceReader(path) as reader:
        *_, (_, last) = replay(reader)
        return last


@pytest.mark.parametrize("seed", range(30))
def test_every_decision_is_reproduced(tmp_path: Path, seed: int):
    """Policies, layouts, sharing, aborts, preemptions, failures, pauses, and switches of all of these."""
    assert first_difference(save(tmp_path / "t.jsonl", seed)) is None


def test_the_runs_above_have_something_to_reproduce():
    kinds, hits, preemptions = set(), 0, 0
    for seed in range(20):
        _, records = run(seed)
        kinds |= {event.kind for record in records for event in record.events}
        hits += records[-1].prefix_hit_tokens
        preemptions += records[-1].num_preemptions
    assert kinds >= set(EventKind) - {EventKind.COPIED}
    assert hits > 1000
    assert preemptions > 5


def test_which_requests_begin_alike_decides_and_is_recorded(tmp_path: Path):
    """With other numbers in place of the tokens the same arrivals would share nothing, and the check sees it."""
    path = save(tmp_path / "t.jsonl", 5, settings=SHARING)
    assert first_difference(path) is None
    lines = path.read_text().splitlines()
    for i, line in enumerate(lines[1:], start=1):
        raw = json.loads(line)
        for number, item in enumerate(raw.get("inputs", [])):
            if item["type"] == "arrival":
                count = sum(n for _, n in item["prompt"])
                item["prompt"] = [[1_000_000 + 1000 * (10 * i + number), count]]
        lines[i] = json.dumps(raw)
    path.write_text("\n".join(lines) + "\n")
    difference = first_difference(path)
    assert difference is not None


@pytest.mark.parametrize(
    ("field", "value"),
    [("active_decode", []), ("num_free_blocks", 1), ("computed", {"0": 5}), ("events", []), ("pending_prefill", [77])],
)
def test_a_decision_that_was_changed_is_named(tmp_path: Path, field: str, value: object):
    lines = trace_text(*run(5, settings=SHARING)).splitlines()
    raw = json.loads(lines[9])
    assert raw["step"].get(field, None) != value
    raw["step"][field] = value
    lines[9] = json.dumps(raw)
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(lines) + "\n")
    difference = first_difference(path)
    assert difference is not None
    assert (difference.step, difference.what) == (9, field)
    assert f"step 9, {field}" in str(difference)


def test_a_trace_from_before_shortages_were_explained_replays_and_a_wrong_explanation_is_found():
    later = ("free_blocks", "cached_blocks", "promised_blocks", "own_prefix_blocks")
    records = run(5, settings=replace(SHARING, num_blocks=24))[1]
    record = next(record for record in records if any(map(_is_explained, record.waiting.values())))
    old = {rid: replace(wait, **dict.fromkeys(later)) for rid, wait in record.waiting.items()}
    assert compare(replace(record, waiting=old), record) is None
    wrong = {rid: replace(wait, free_blocks=99) for rid, wait in record.waiting.items()}
    assert compare(record, record) is None
    assert str(compare(replace(record, waiting=wrong), record)).startswith(f"step {record.step}, waiting: ")


def _is_explained(wait: Wait) -> bool:
    return wait.free_blocks is not None


def test_a_missing_arrival_is_found(tmp_path: Path):
    lines = trace_text(*run(5, settings=SHARING)).splitlines()
    raw = json.loads(lines[1])
    assert raw.pop("inputs")[0]["type"] == "arrival"
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([lines[0], json.dumps(raw), *lines[2:]]) + "\n")
    difference = first_difference(path)
    assert difference is not None
    assert difference.step == 1


def test_a_trace_from_the_middle_cannot_be_run_again_and_says_so(tmp_path: Path):
    lines = trace_text(*run(5, settings=SHARING)).splitlines()
    base = '{"base":{"step":5,"num_blocks":60,"block_size":4}}'
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([lines[0], base, *lines[6:]]) + "\n")
    with pytest.raises(TraceError, match="begins at step 6"):
        first_difference(path)


def test_the_command_line_says_so_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = save(tmp_path / "t.jsonl", 5, settings=SHARING)
    steps = len(load(path).steps)
    assert trace_module.main(["replay", str(path), "--check"]) == 0
    assert capsys.readouterr().out == f"{steps} steps replayed, every decision as recorded\n"
    assert trace_module.main(["replay", str(path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == steps + 1
    assert trace_module.main(["info", str(path)]) == 0
    assert f"{steps} steps" in capsys.readouterr().out
    assert trace_module.main(["export", str(path), "--format", "csv", "--out", str(tmp_path / "tables")]) == 0
    assert len((tmp_path / "tables" / "t-steps.csv").read_text().splitlines()) == steps + 1
    assert trace_module.main(["export", str(path), "--format", "perfetto"]) == 0
    assert json.loads((tmp_path / "t.perfetto.json").read_text())["traceEvents"]
    path.write_text(path.read_text().replace('"num_free_blocks":', '"num_free_blocks":1', 1))
    capsys.readouterr()
    assert trace_module.main(["replay", str(path), "--check"]) == 1
    assert "differs at step 1, num_free_blocks" in capsys.readouterr().out
    path.write_text("no trace\n")
    assert trace_module.main(["replay", str(path), "--check"]) == 2
    assert "t.jsonl: line 1" in capsys.readouterr().err


def small_service() -> EngineService:
    """On the real clock, with steps that take no time."""
    settings = EngineSettings(num_blocks=40, block_size=4, max_num_seqs=4, max_num_batched_tokens=32)
    return EngineService(SimulatedRunner(SimulatedClock()), None, settings, model_name="simulated")


def talk(service: EngineService, num_requests: int) -> None:
    beginning = tuple(range(20))
    for i in range(num_requests):
        streams = service.submit((*beginning, 100 + i), SamplingParams(max_tokens=6, n=1 + i % 2))
        for stream in streams:
            stream.result(timeout_s=20)


def test_a_live_service_is_recorded_and_replays(tmp_path: Path):
    service = small_service()
    recorder = TraceRecorder(service, tmp_path / "t.jsonl")
    service.add_listener(recorder)
    service.start()
    talk(service, 6)
    service.control({"policy": "static"})
    service.control({"kv_layout": "contiguous"})
    talk(service, 4)
    service.stop()
    recorder.close()
    trace = load(tmp_path / "t.jsonl")
    assert [decisions(record) for record in trace.records] == [decisions(record) for record in service.steps().records]
    assert first_difference(tmp_path / "t.jsonl") is None
    assert trace.records[-1].prefix_hit_tokens > 0


def test_the_ring_is_a_trace_as_long_as_it_holds_the_first_step(tmp_path: Path):
    service = small_service()
    service.start()
    talk(service, 3)
    service.stop()
    path = tmp_path / "t.jsonl"
    path.write_text("".join(iter_jsonl(service)))
    assert first_difference(path) is None
    assert json.loads("".join(iter_perfetto(service)))["otherData"] == {"model": "simulated"}


def test_nothing_of_prompts_and_answers_is_in_a_trace():
    secret = (7654321, 7654322, 7654323, 7654324, 7654325)
    heads: list[str] = []
    for _ in range(2):
        service = small_service()
        service.start()
        service.submit(secret, SamplingParams(max_tokens=3))[0].result(timeout_s=20)
        service.stop()
        assert "76543" not in "".join(iter_jsonl(service))
        heads += [head for record in service.steps().records for _, head in record.blocks.cached]
    assert len(heads) == 2
    assert heads[0] != heads[1], "whoever sees a digest can try out what the prompt was"


CRASH = """
import os, signal, sys
from pathlib import Path
from tests.flow.test_replay import small_service, talk
from engine.telemetry.trace import TraceRecorder
service = small_service()
recorder = TraceRecorder(service, Path(sys.argv[1]))
service.add_listener(recorder)
service.start()
talk(service, 5)
recorder.flush()
print(service.state()["step"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_leaves_a_trace_that_is_whole_up_to_the_last_step(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(path)], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(load(path).steps) == int(done.stdout)
    assert first_difference(path) is None


SHIPPED = ROOT / "assets" / "playground-trace.jsonl.gz"


def test_the_trace_that_ships_with_the_project_replays():
    """Recorded anew by `python -m assets.record_trace` whenever the scheduler is meant to decide otherwise."""
    assert first_difference(SHIPPED) is None


def test_the_trace_that_ships_shows_what_there_is_to_see():
    trace = load(SHIPPED)
    seen = {(record.policy, record.kv_layout) for record in trace.records}
    assert seen == {("mixed", "paged"), ("static", "contiguous")}
    kinds = {event.kind for record in trace.records for event in record.events}
    assert {EventKind.PREEMPTED, EventKind.COPIED, EventKind.EVICTED, EventKind.SETTINGS} <= kinds
    assert trace.records[-1].prefix_hit_tokens > 300
    assert trace.records[-1].wasted_slot_steps > 100
    assert SHIPPED.stat().st_size < 1 << 20
