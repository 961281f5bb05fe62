"""Every policy x layout x sharing x block size x pool x budget: the same answers, token by token.

`python -m tests.flow.product` runs all of it on RAND and HIST and prints the table of notes/correctness.md.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import tiny_models
from tests.engine_driver import Driver
from tests.flow import tiny_runs
from tests.flow.tiny_runs import EOS, prompt

POLICIES = ("static", "decode_first", "prefill_first", "mixed")
LAYOUTS = ("paged", "contiguous")
SHARING = (True, False)
BLOCK_SIZES = (1, 16, 256)
POOLS = {"ample": 2048, "tight": 64}
"""Tokens that fit the pool (a block at least). Tight: the longest request and a little more."""
BUDGETS = (16, 512)


@dataclass(frozen=True)
class Case:
    """One point of the product."""

    policy: str
    layout: str
    sharing: bool
    block_size: int
    pool: str
    budget: int


@dataclass(frozen=True)
class Outcome:
    """How many answers were equal, and what happened on the way."""

    num_equal: int
    num_requests: int
    num_preemptions: int
    num_hit_tokens: int
    num_copies: int


def cases() -> Iterator[Case]:
    """All of them: 192."""
    for values in itertools.product(POLICIES, LAYOUTS, SHARING, BLOCK_SIZES, POOLS, BUDGETS):
        yield Case(*values)


def run(folder: Path, case: Case) -> Outcome:
    """Twelve requests, greedy and with seeds, with common beginnings, three siblings and one arrival under way."""
    driver = tiny_runs.driver(
        folder,
        policy=case.policy,
        kv_layout=case.layout,
        prefix_caching=case.sharing,
        block_size=case.block_size,
        num_blocks=-(-POOLS[case.pool] // case.block_size),
        max_num_batched_tokens=case.budget,
        max_num_seqs=4,
    )
    _ask(driver)
    driver.clock.advance(0.1)
    driver.steps(3)
    driver.one(prompt(1, 20) + prompt(9, 9), 8, eos=EOS)
    driver.run()
    equal = [request.output_token_ids == tiny_runs.alone(folder, request) for request in driver.requests]
    return Outcome(
        sum(equal),
        len(equal),
        driver.engine.scheduler.num_preemptions,
        driver.engine.scheduler.prefix_hit_tokens,
        len(driver.events("copied")),
    )


def _ask(driver: Driver) -> None:
    driver.add(prompt(5, 21), 8, n=3, eos=EOS, seed=70, temperature=0.8, top_k=40, frequency_penalty=0.5)
    common = prompt(1, 20)
    for number, text in enumerate(
        (common + prompt(2, 17), common + prompt(3, 4), prompt(4, 5), common + prompt(2, 17))
    ):
        driver.one(text, 8, eos=EOS)
        driver.one(text, 8, eos=EOS, seed=number, temperature=1.0, top_p=0.95)


def table(outcomes: dict[Case, Outcome]) -> Iterator[str]:
    """Markdown: policy, layout and sharing down, the rest across; each cell is equal answers of all."""
    columns = list(itertools.product(BLOCK_SIZES, POOLS, BUDGETS))
    yield (
        "| policy | layout | sharing | "
        + " | ".join(f"{size} {pool} {budget}" for size, pool, budget in columns)
        + " |"
    )
    yield "|" + " --- |" * (3 + len(columns))
    for policy, layout, sharing in itertools.product(POLICIES, LAYOUTS, SHARING):
        row = [outcomes[Case(policy, layout, sharing, *column)] for column in columns]
        cells = " | ".join(f"{cell.num_equal}/{cell.num_requests}" for cell in row)
        yield f"| {policy} | {layout} | {'on' if sharing else 'off'} | {cells} |"


def main() -> int:
    """Print the table for both models; 1 when an answer differs."""
    wrong = 0
    for name, build in (("RAND", tiny_models.rand), ("HIST", tiny_models.hist)):
        with tempfile.TemporaryDirectory() as scratch:
            folder = build(Path(scratch) / "model")
            started = time.perf_counter()
            outcomes = {case: run(folder, case) for case in cases()}
            seconds = time.perf_counter() - started
        wrong += sum(outcome.num_requests - outcome.num_equal for outcome in outcomes.values())
        print(f"{name}: {len(outcomes)} settings, {sum(o.num_requests for o in outcomes.values())} answers, ", end="")
        print(f"{wrong} different; {sum(o.num_preemptions for o in outcomes.values())} preemptions, ", end="")
        print(f"{sum(o.num_hit_tokens for o in outcomes.values())} tokens found in the prefix cache, ", end="")
        print(f"{sum(o.num_copies for o in outcomes.values())} copies on write. ({seconds:.0f} s)\n")
        print("\n".join(table(outcomes)), end="\n\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
