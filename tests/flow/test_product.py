"""All of the product of settings, on RAND: the table of notes/correctness.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flow import product

BY_SETTING = [
    pytest.param(
        [case for case in product.cases() if (case.policy, case.layout, case.sharing) == key],
        id="-".join(map(str, key)),
    )
    for key in sorted({(case.policy, case.layout, case.sharing) for case in product.cases()})
]


def test_the_product_is_whole() -> None:
    assert len(set(product.cases())) == 4 * 2 * 2 * 3 * 2 * 2


@pytest.mark.parametrize("cases", BY_SETTING)
def test_the_same_answers_whatever_the_settings(rand: Path, cases: list[product.Case]) -> None:
    assert len(cases) == 12
    outcomes = {case: product.run(rand, case) for case in cases}
    different = {case: outcome for case, outcome in outcomes.items() if outcome.num_equal != outcome.num_requests}
    assert not different
    if cases[0].layout == "paged":
        assert sum(outcome.num_preemptions for outcome in outcomes.values()) > 0  # tight is tight
        assert sum(outcome.num_copies for outcome in outcomes.values()) > 0 or cases[0].policy == "static"
        assert (sum(outcome.num_hit_tokens for outcome in outcomes.values()) > 0) or not cases[0].sharing
    else:
        assert all(outcome.num_preemptions == outcome.num_hit_tokens == 0 for outcome in outcomes.values())
