"""The browser's model of what happened, fed with hand-written steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.viz.javascript import run_js


def test_percentiles_and_lives_tell_how_long_people_waited() -> None:
    """Hand-written steps: B waits for A's slot, then for its prompt."""

    def step(number: int, time_s: float, /, **more: Any) -> dict[str, Any]:
        return {"s": number, "t": time_s, "d": 1_000_000, "x": [0] * 6} | more

    arrived = [{"type": "arrived", "request_id": rid, "num_prompt_tokens": 4, "max_tokens": 2} for rid in (1, 2)]
    admitted = {"type": "admitted", "cached_tokens": 0, "is_resumed": False}
    steps = [
        step(1, 0.0, k=1, cfg=["mixed", "paged", 8, 1, 4, 4], pp={"=": [1, 2]}, pd={"=": []}, ad={"=": []}, ap=[1, 4],
             c={1: 4}, o={1: 1}, w={2: ["no_slot"]}, wd=None, bt={1: [0, [0]]}, m=[3, 0, 1, 4, 0, 0], n=[0, 0, 4, 0, 0],
             e=[*arrived, admitted | {"request_id": 1, "queue_s": 0.0},
                {"type": "first_token", "request_id": 1, "ttft_s": 1.0}]),
        step(2, 1.0, pp={"=": [2]}, pd={"=": [1]}, ad={"=": [1]}, bt={1: [1, [2]]}, m=[2, 0, 2, 5, 3750, 0]),
        step(3, 2.0, pd={"=": []}, ad={"=": []}, ap=[2, 4], wx=[2], o={2: 1}, rel=[1], bt={2: [0, [0]]},
             m=[3, 0, 1, 4, 0, 0],
             e=[{"type": "finished", "request_id": 1, "reason": "length", "num_output_tokens": 2},
                admitted | {"request_id": 2, "queue_s": 2.5}, {"type": "first_token", "request_id": 2, "ttft_s": 3.5}]),
    ]  # fmt: skip
    base = {
        "step": 0,
        "num_blocks": 4,
        "block_size": 4,
        "block_tables": {},
        "computed": {},
        "cached": [],
        "requests": {},
    }
    answer = {"epoch": "x", "oldest": 1, "newest": 3, "base": base, "steps": steps}
    seen = run_js(
        """
        const { History } = await load("history.js");
        const { percentile, stillWaiting, ttftParts, gapsOverTime } = await load("series.js");
        const history = new History();
        const told = [];
        for (const step of given.steps) {
            history.ingest({ ...given, base: step.s === 1 ? given.base : null, steps: [step] });
            told.push(stillWaiting(history).map(({ life, waited, isIn }) => [life.id, waited, isIn]));
        }
        const b = history.lives.get(2);
        return {
            told,
            parts: ttftParts(b),
            waits: b.waits,
            arrival: b.arrival,
            kinds: b.segments.map((s) => [s.kind, s.from, s.to]),
            gaps: history.frames.map((f) => f.gaps),
            over: gapsOverTime(history.frames, 0, 3, 3),
            percentiles: [0.5, 0.95, 1].map((p) => percentile([[3, 1], [1, 2], [2, 1]], p)),
            rate: history.tokensPerSecond(history.last, 10),
        };
        """,
        json.loads(json.dumps(answer)),
    )
    assert seen["told"] == [[[2, 1, False]], [[2, 2, False]], []]
    assert seen["parts"] == {"waiting": 2.5, "prefill": 1, "other": 0}
    assert seen["arrival"] == -0.5
    assert seen["kinds"] == [["queue", -0.5, 2], ["prefill", 2, 3]]
    assert seen["waits"] == {"no_slot": 2, "step_under_way": 0.5}
    assert seen["gaps"] == [[], [[1, 1]], []]
    assert [(gap["t"], gap["p50"], gap["n"]) for gap in seen["over"]] == [(1.5, 1, 1)]
    assert seen["percentiles"] == [1, 3, 3]
    assert seen["rate"] == pytest.approx(1.0)
