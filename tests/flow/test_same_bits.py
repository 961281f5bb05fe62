"""The same answer in any company, to the last bit: the real engine and runner over every policy, layout and budget.

Each request's logits, one row a token, are held against those of the same request alone under the same settings. Under
test are the forms in which a CPU serves: bfloat16 or, without bfloat16 in hardware, float32 with weights in float16 or
all in float32; and 4-bit weights for answers. Where this machine lacks an operator the form is left out, and says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.loading import choose_dtype
from engine.model.linears import has_float16_linear, has_int4_linear, has_onednn_linear
from engine.model.loader import load_fast
from engine.scheduling.request import Request
from engine.torch_runner import TorchRunner
from tests import gguf_files, tiny_models
from tests.engine_driver import Driver
from tests.flow.tiny_runs import prompt

POLICIES = ("static", "decode_first", "prefill_first", "mixed")
LAYOUTS = ("paged", "contiguous")
SHARING = (True, False)
BUDGETS = (16, 512)
NUM_BLOCKS, BLOCK_SIZE = 19, 4
"""76 tokens; the longest request takes 63. Under way somebody is preempted where the layout lets it come to that."""

NEW_TOKENS = 9
COMMON = prompt(1, 20)
FIRST = [COMMON + prompt(2, 34), COMMON + prompt(3, 4), prompt(4, 1), prompt(5, 33)]
LATER = [COMMON + prompt(2, 34), prompt(6, 17), COMMON + prompt(7, 9)]

needs_float16 = pytest.mark.skipif(not has_float16_linear(), reason="this torch has no float16 product for this CPU")
needs_int4 = pytest.mark.skipif(not has_int4_linear(), reason="this torch has no 4-bit product for this CPU")

Rows = dict[int, dict[int, Tensor]]
"""Request id -> place in its answer -> logits (vocab,)."""


class ListeningRunner(TorchRunner):
    """Keeps the logits of every token that it sampled. A request that was preempted must not get other ones again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rows: Rows = {}

    def _sample(self, logits: Tensor | None, sampling: Any) -> Any:
        for i, s in enumerate(sampling):
            assert logits is not None
            self.rows.setdefault(s.request_id, {})[len(s.request.output_token_ids)] = logits[i].clone()
        return super()._sample(logits, sampling)

    def reset_pool(self, num_blocks: int, block_size: int) -> None:
        super().reset_pool(num_blocks, block_size)
        self.kv.storage[:, :, : num_blocks * self.kv.num_kv_heads] = torch.nan


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """These products are too small for two, who on a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


FORMS = [
    "float32",
    "bfloat16",
    pytest.param("float16 weights", marks=needs_float16),
    pytest.param("int4", marks=needs_int4),
]


@pytest.fixture(scope="module", params=FORMS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    dtype_here = choose_dtype("auto", "cpu")
    dtypes = {"int4": dtype_here, "float16 weights": torch.float32}
    dtype = dtypes.get(request.param) or getattr(torch, request.param)
    if request.param == "float32" and dtype_here != dtype:
        pytest.skip("this CPU does not serve in float32 by itself")
    if not has_onednn_linear(dtype) and not rows_are_alike():
        pytest.skip("this CPU's bfloat16 products depend on the number of rows")
    folder = tiny_models.rand(tmp_path_factory.mktemp("rand"))
    path: Path = folder
    if request.param == "int4":
        path = gguf_files.convert(folder, tmp_path_factory.mktemp("gguf") / "rand.gguf", "Q4_1")
    quantization = "int4" if request.param == "int4" else "none"
    fast = load_fast(path, dtype, "cpu", quantization, torch.float16 if request.param == "float16 weights" else None)
    assert (fast.model.answer_form is not None) == (request.param == "int4")
    return fast.model


def rows_are_alike() -> bool:
    """Whether torch's plain bfloat16 products, which serve where oneDNN cannot, happen to keep the promise here."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 128, generator=generator).bfloat16() for n in (64, 192))
    whole = torch.nn.functional.linear(x, weight)
    return all(torch.equal(torch.nn.functional.linear(x[:n], weight), whole[:n]) for n in (1, 2, 3, 8, 17))


def driver(model: Any, **settings: Any) -> Driver:
    sizes = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE, "max_num_seqs": 4} | settings
    runner = ListeningRunner(model, sizes["num_blocks"], sizes["block_size"], model.embedding.dtype, "cpu", 260)
    return Driver(runner, **sizes)


def together(model: Any, **settings: Any) -> Driver:
    """Four requests at once and three under way, until all have their answers."""
    one = driver(model, **settings)
    for text in FIRST:
        one.one(text, NEW_TOKENS)
    one.clock.advance(0.1)
    for text in LATER:
        one.steps(2)
        one.one(text, NEW_TOKENS)
    one.steps(2)
    one.add(prompt(8, 14), NEW_TOKENS, n=3, seed=70, temperature=0.8, top_k=40)
    one.run()
    return one


def alone(model: Any, asked: Request, **settings: Any) -> dict[int, Tensor]:
    """The rows of the same request in an engine of its own."""
    one = driver(model, **settings)
    how = {"seed": asked.seed, "temperature": asked.params.temperature, "top_k": asked.params.top_k}
    request = one.one(asked.prompt_token_ids, NEW_TOKENS, **how)
    one.clock.advance(0.1)
    one.run()
    return one.runner.rows[request.request_id]


CASES = list(itertools.product(POLICIES, LAYOUTS, SHARING, BUDGETS))


@pytest.mark.parametrize(("policy", "layout", "sharing", "budget"), CASES)
def test_every_token_has_the_bits_that_it_has_alone(
    model: Any, policy: str, layout: str, sharing: bool, budget: int
) -> None:
    settings = {"policy": policy, "kv_layout": layout, "prefix_caching": sharing, "max_num_batched_tokens": budget}
    one = together(model, **settings)
    for request in one.requests:
        expected, got = alone(model, request, **settings), one.runner.rows[request.request_id]
        assert sorted(got) == list(range(NEW_TOKENS))
        for place, row in got.items():
            assert torch.equal(row, expected[place]), f"request {request.request_id}, token {place}"
    scheduler = one.engine.scheduler
    assert bool(scheduler.num_preemptions) == (layout == "paged")
    assert bool(scheduler.prefix_hit_tokens) >= (layout == "paged" and sharing)


def test_an_operator_chosen_by_the_number_of_rows_would_be_seen(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is faster at large batches and not done: the prompts' form of the weights for answers in company."""
    if model.answer_form is None:
        pytest.skip("there is one form of the weights to choose from")
    few = model.answer_form

    def by_rows(token_ids: Tensor, positions: Tensor, attend: Any) -> Tensor:
        return (few if len(token_ids) < 3 else model)(token_ids, positions, attend)

    monkeypatch.setattr(model, "answer_form", by_rows)
    one = together(model, num_blocks=200)
    expected = [alone(model, request, num_blocks=200) for request in one.requests]
    rows = [one.runner.rows[request.request_id] for request in one.requests]
    assert any(not torch.equal(a[i], b[i]) for a, b in zip(rows, expected, strict=True) for i in a)


def test_the_one_exception_is_an_answer_found_in_the_prefix_cache(model: Any) -> None:
    """A prompt that continues another request's answer finds keys and values that the answers' form computed."""
    one = driver(model)
    first = one.one(prompt(9, 16), NEW_TOKENS)
    one.run()
    second = one.one([*first.prompt_token_ids, *first.output_token_ids, *prompt(10, 5)], NEW_TOKENS)
    one.run()
    assert second.num_cached_tokens > first.num_prompt_tokens
    found, computed = one.runner.rows[second.request_id][0], alone(model, second)[0]
    assert torch.equal(found, computed) == (model.answer_form is None)
    assert (found - computed).norm() < 0.1 * computed.norm()
