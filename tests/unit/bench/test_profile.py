"""The profile of a step counts every operator once, in its group, and leaves the runner as it was."""

from __future__ import annotations

from collections import Counter

import pytest

from engine.bench.profile import profiled
from engine.kv.paged_attention import PagedAttention
from engine.loading import LoadedModel, load_model, open_model
from tests import tiny_models

LAYERS = 3


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tiny_models.rand(tmp_path_factory.mktemp("rand"))
    return load_model(open_model(str(folder), "cpu", "float32"), "none", 1, 16)


@pytest.mark.parametrize("batch", [1, 3])
def test_every_operator_has_its_group(loaded: LoadedModel, batch: int) -> None:
    result = profiled(loaded, batch, seed=0)
    calls: Counter[str] = Counter()
    for one in result["operators"]:
        calls[one["group"]] += one["calls"]
    assert calls["linears"] == 4 * LAYERS
    assert calls["attention"] >= 3 * LAYERS  # two products and a softmax
    assert calls["norms"] >= 2 * LAYERS + 1
    assert calls["head"] >= 1
    assert calls["writing keys and values"] in (LAYERS, 2 * LAYERS)
    assert sum(result["groups"].values()) == pytest.approx(result["profiled_ms"])
    assert min(result["groups"].values()) > 0
    assert {"engine", "building the batch", "sampling", "norms", "Python of the forward pass"} <= set(result["groups"])


def test_it_leaves_nothing_behind(loaded: LoadedModel) -> None:
    call = PagedAttention.__call__
    profiled(loaded, 1, seed=0)
    assert PagedAttention.__call__ is call
    assert not {"run", "passes", "_logits", "_sample"} & set(vars(loaded.runner))
