"""Every test that notes/correctness.md names is there, and its table is of the whole product."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.flow import product

ROOT = Path(__file__).resolve().parents[2]
NOTE = (ROOT / "notes" / "correctness.md").read_text()


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", NOTE))))
def test_a_named_test_is_there(named: str) -> None:
    path, name = named.split("::")
    assert f"\ndef {name}(" in (ROOT / path).read_text()


@pytest.mark.parametrize("policy", product.POLICIES)
def test_the_table_has_a_row_for_each_setting(policy: str) -> None:
    rows = [line for line in NOTE.splitlines() if line.startswith(f"| {policy} |")]
    assert len(rows) == 2 * len(product.LAYOUTS) * len(product.SHARING)  # two models
    for row in rows:
        cells = re.findall(r"(\d+)/(\d+)", row)
        assert len(cells) == len(product.BLOCK_SIZES) * len(product.POOLS) * len(product.BUDGETS)
        assert {equal == of for equal, of in cells} == {True}
