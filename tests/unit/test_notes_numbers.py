"""What the notes say happens does happen: every number of steps, and the example policy."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import settings
from engine.bench.simulate import simulate
from engine.scheduling import policies
from engine.settings import EngineSettings
from engine.telemetry.figures import RunFigures, figures_of, token_gaps
from engine.telemetry.record import EventKind, WaitReason
from viz.pictures import scenes

ROOT = Path(__file__).resolve().parents[2]


def note(name: str) -> str:
    return (ROOT / "notes" / name).read_text()


def figures(run: scenes.SimulatedRun) -> RunFigures:
    return figures_of(run.records)


def ttft_ms(run: scenes.SimulatedRun, request_id: int) -> float:
    ends = [e for r in run.records for e in r.events if e.kind is EventKind.FINISHED and e.request_id == request_id]
    return 1000 * float(ends[0].details["ttft_s"])


def longest_gap_ms(run: scenes.SimulatedRun) -> float:
    return 1000 * max(gap for gaps in token_gaps(run.records).values() for gap in gaps)


def trade_row(policy: str) -> str:
    run = scenes.trade(policy)
    median = 1000 * (figures(run).ttft_p50_s or 0)
    return f"| `{policy}` | {len(run.records)} | {median:.0f} ms | {longest_gap_ms(run):.1f} ms |"


def overbooked() -> str:
    contiguous, paged = figures(scenes.asked_for_much("contiguous")), figures(scenes.asked_for_much("paged"))
    return (
        f"Contiguous memory has room for {contiguous.most_at_once} requests at a time, and on average "
        f"{contiguous.internal_fragmentation:.0%} of what they own is empty; the run takes {contiguous.num_steps} "
        f"steps. Paged memory runs {paged.most_at_once} at once, {paged.internal_fragmentation:.0%} empty, "
        f"{paged.num_steps} steps."
    )


def preempted() -> str:
    run = scenes.tight()
    record, event = next((r, e) for r in run.records for e in r.events if e.kind is EventKind.PREEMPTED)
    again = next(r for r in run.records if r.step > record.step and 4 in r.active_prefill)
    assert event.request_id == 4
    assert event.details["for_request"] == 1
    return (
        f"In step {record.step} request D is preempted for A: it gives back {event.details['freed_blocks']} blocks and "
        f"loses {event.details['lost_tokens']} stored tokens. It keeps its answer so far, returns to "
        f"`pending_prefill`, and in step {again.step} computes prompt and answer again, "
        f"{again.num_tokens[4]} tokens in one chunk"
    )


def shared_prefix() -> str:
    on, off = scenes.shared(), scenes.shared(False)
    last = on.records[-1]
    return (
        f"Of {last.prefix_query_tokens} prompt tokens {last.prefix_hit_tokens} were not computed; the run takes "
        f"{len(on.records)} steps instead of {len(off.records)}, and at most {figures(on).peak_blocks} blocks instead "
        f"of {figures(off).peak_blocks}."
    )


def rectangle() -> str:
    records = scenes.padded().records
    useful = sum(sum(record.num_tokens.values()) for record in records)
    padding = sum(sum(record.padding.values()) for record in records)
    inactive = sum(record.num_inactive_rows for record in records)
    return (
        f"Of the {useful + padding + inactive} positions computed, {useful} are somebody's token; {padding} are "
        f"padding and {inactive} inactive slots."
    )


def rows_computed() -> str:
    records = scenes.alone().records
    without = sum(sum(record.computed.values()) for record in records)
    with_cache = sum(sum(record.num_tokens.values()) for record in records)
    return f"that is {without} rows through every linear layer; with the keys and values kept it is {with_cache}:"


def hole() -> str:
    run = scenes.holes()
    record, wait = next((r, w) for r in run.records for w in r.waiting.values() if w.reason is WaitReason.NO_RUN)
    return (
        f"{record.num_free_blocks} blocks are free, F needs {wait.needed_blocks}, and the longest run has "
        f"{wait.available_blocks}."
    )


def chunked() -> str:
    whole, chunks = scenes.long_prompt("prefill_first", 128), scenes.long_prompt("mixed", 16)
    size = next(r.num_tokens[4] for r in chunks.records if 4 in r.num_tokens)
    return (
        f"computed at once, the others wait {longest_gap_ms(whole):.0f} ms for one token; in chunks of {size}, never "
        f"more than {longest_gap_ms(chunks):.1f} ms. The price is paid by the long prompt itself: its first token "
        f"comes after {ttft_ms(chunks, 4):.0f} ms instead of {ttft_ms(whole, 4):.0f}."
    )


def classic() -> str:
    static, continuous = (simulate(policy, scenes.UNEVEN, 4) for policy in ("static", "mixed"))
    return f"on the same four slots: {static['decode_steps']} steps and {continuous['decode_steps']}."


def classic_static() -> str:
    static = simulate("static", scenes.UNEVEN, 4)
    return (
        f"*{static['decode_steps']}: two cohorts, each as long as its longest member. "
        f"Utilization {static['utilization']}."
    )


def cache_bytes() -> str:
    config = json.loads((ROOT / "tests/unit/model/configs/smollm2-135m-instruct.json").read_text())
    layers, heads = config["num_hidden_layers"], config["num_key_value_heads"]
    size = config["hidden_size"] // config["num_attention_heads"]
    token = 2 * layers * heads * size * 2
    blocks = EngineSettings().num_blocks
    return (
        f"*2 (K and V) × {layers} × {heads} × {size} × 2 bytes = {token:,}. A block of 16 tokens is "
        f"{token * 16 // 1024} KiB; {blocks} of them are {token * 16 * blocks // 2**20} MiB.*"
    )


CLAIMS: list[tuple[str, Callable[[], str]]] = [
    ("continuous-batching.md", classic),
    ("static-batching.md", classic_static),
    ("static-batching.md", rectangle),
    ("kv-cache.md", rows_computed),
    ("kv-cache.md", cache_bytes),
    ("paged-kv.md", overbooked),
    ("paged-kv.md", hole),
    ("prefix-sharing.md", shared_prefix),
    ("preemption.md", preempted),
    ("scheduling-policies.md", chunked),
    ("scheduling-policies.md", lambda: trade_row("decode_first")),
    ("scheduling-policies.md", lambda: trade_row("prefill_first")),
    ("scheduling-policies.md", lambda: trade_row("mixed")),
]


@pytest.mark.parametrize(("name", "claim"), CLAIMS)
def test_numbers_are_those_of_the_present_engine(name: str, claim: Callable[[], str]):
    """The sentence, worked out anew, stands in the note (whatever its line breaks)."""
    assert " ".join(claim().split()) in " ".join(note(name).split())


def test_equal_answers_need_the_same_number_of_steps_either_way():
    assert simulate("static", [8] * 8, 4)["decode_steps"] == simulate("mixed", [8] * 8, 4)["decode_steps"]


# -- the example policy ------------------------------------------------------------------------------------------------


def example() -> str:
    found = re.search(r"```python\n(.*?)```", note("add-a-policy.md"), re.DOTALL)
    assert found
    return found[1]


def test_the_example_policy_has_at_most_thirty_lines():
    assert len(example().strip().splitlines()) <= 30


def test_the_example_policy_works_and_does_what_it_says(monkeypatch: pytest.MonkeyPatch):
    space: dict[str, type] = {}
    exec(example(), space)
    monkeypatch.setitem(policies.POLICIES, "gentle", space["Gentle"]())
    monkeypatch.setattr(settings, "POLICIES", (*settings.POLICIES, "gentle"))
    gentle, mixed = (scenes.long_prompt.__wrapped__(policy, 64) for policy in ("gentle", "mixed"))
    assert longest_gap_ms(gentle) < longest_gap_ms(mixed)
    assert ttft_ms(gentle, 4) > ttft_ms(mixed, 4)
    assert figures(gentle).num_finished == figures(mixed).num_finished == 4
    assert max(sum(r.num_tokens[rid] for rid in r.active_prefill) for r in gentle.records) <= 16


def test_the_places_where_a_policy_is_registered_are_those_the_note_names():
    from engine.serving.engine_api import Control

    words = set(re.findall(r"'(\w+)'", str(Control.model_fields["policy"].annotation)))
    assert set(policies.POLICIES) <= words
    assert set(policies.POLICIES) == set(settings.POLICIES)
    controls = importlib.import_module("viz.controls")
    assert {value for _, value in controls.POLICIES} == set(policies.POLICIES)
