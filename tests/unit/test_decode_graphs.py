"""Decode graphs, rehearsed without a card: the fixed memory, its padding, and the same tokens as without them."""

from pathlib import Path

import pytest
import torch

from engine import torch_runner
from engine.decode_graphs import BATCH_SIZES, DecodeGraphs, rehearse
from engine.kv import device_attention
from engine.model.loader import load_fast
from engine.torch_runner import TorchRunner
from tests import tiny_models
from tests.unit.kv.test_device_attention import varlen_attn
from tests.unit.runner_driver import Driver, request

PROMPTS = [[4 + (7 * i + 3 * j) % 250 for i in range(n)] for j, n in enumerate((1, 5, 16, 33, 70, 150, 290))]
NUM_BLOCKS = 1500


@pytest.fixture(scope="module")
def rand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.rand(tmp_path_factory.mktemp("rand"))


def runner(folder: Path, use_graphs: bool = True) -> TorchRunner:
    model = load_fast(folder, torch.float32).model
    made = TorchRunner(model, NUM_BLOCKS, 16, torch.float32, vocab_size=260, use_graphs=use_graphs)
    made.kv.storage[:, :, : NUM_BLOCKS * made.config.num_key_value_heads] = torch.nan
    return made


@pytest.mark.parametrize("num_inactive", [0, 2])
def test_the_same_tokens_as_transformers(rand: Path, num_inactive: int) -> None:
    made = runner(rand)
    requests = [request(i, prompt, 12) for i, prompt in enumerate(PROMPTS)]
    Driver(made, NUM_BLOCKS, 16).finish(requests, num_inactive=num_inactive)
    for r in requests:
        expected = tiny_models.oracle(rand, r.prompt_token_ids, 12)
        assert r.output_token_ids[: len(expected)] == expected
    assert made.graphs is not None
    assert sorted(made.graphs._steps) == [(16 if num_inactive else 8, 24)]  # one graph, 384 slots


def test_a_batch_that_shrinks_reads_nothing_of_those_who_left(rand: Path) -> None:
    made, plain = runner(rand), runner(rand, use_graphs=False)
    answers = []
    for one in (made, plain):
        requests = [request(i, PROMPTS[i % 6], 3 + 2 * i) for i in range(12)]
        Driver(one, NUM_BLOCKS, 16).finish(requests)
        answers.append([r.output_token_ids for r in requests])
    assert answers[0] == answers[1]
    assert {size for size, _ in made.graphs._steps} == {1, 2, 4, 8, 16}


def test_prompts_and_batches_beyond_the_largest_go_without(rand: Path) -> None:
    made = runner(rand)
    driver = Driver(made, NUM_BLOCKS, 16)
    requests = [request(i, PROMPTS[1], 2) for i in range(BATCH_SIZES[-1] + 1)]
    driver.run([driver.scheduled(r, 1000) for r in requests])
    driver.run([driver.scheduled(r, 1000) for r in requests])
    assert made.graphs._steps == {}
    assert len({tuple(r.output_token_ids) for r in requests}) == 1


def test_where_capturing_fails_decoding_goes_on_without(rand: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = runner(rand)

    def broken(step: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    made.graphs = DecodeGraphs(made.model, made.kv, made.scale, 260, broken)
    r = request(0, PROMPTS[3], 8)
    Driver(made, NUM_BLOCKS, 16).finish([r])
    expected = tiny_models.oracle(rand, r.prompt_token_ids, 8)
    assert r.output_token_ids[: len(expected)] == expected
    assert caplog.messages == [
        "CUDA graphs are off, decoding goes on without: operation not permitted when stream is capturing"
    ]


def test_another_route_gives_the_same_tokens(rand: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_runner, "why_not", lambda route, kv: None)
    monkeypatch.setattr(device_attention, "varlen_attn", varlen_attn)
    model = load_fast(rand, torch.float32).model
    made = TorchRunner(model, 20, 256, torch.float32, vocab_size=260, use_graphs=True, decode_route="varlen")
    made.kv.storage[:, :, : 20 * made.config.num_key_value_heads] = torch.nan
    requests = [request(i, prompt, 12) for i, prompt in enumerate(PROMPTS)]
    Driver(made, 20, 256).finish(requests)
    for r in requests:
        expected = tiny_models.oracle(rand, r.prompt_token_ids, 12)
        assert r.output_token_ids[: len(expected)] == expected
    assert made.graphs is not None
    assert made.graphs.route == "varlen"
    assert made.graphs._steps


def test_a_route_that_fails_gives_way_to_gathering(
    rand: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch_runner, "why_not", lambda route, kv: None)
    made = TorchRunner(
        load_fast(rand, torch.float32).model, 30, 16, torch.float32, use_graphs=True, decode_route="varlen"
    )  # the real operator refuses a CPU's tensors
    r = request(0, PROMPTS[4], 8)
    Driver(made, 30, 16).finish([r])
    expected = tiny_models.oracle(rand, r.prompt_token_ids, 8)
    assert r.output_token_ids[: len(expected)] == expected
    assert made.graphs is not None
    assert (made.graphs.route, made.graphs.is_broken) == ("gather", False)
    assert made.graphs._steps
    assert [m.split(",")[0] for m in caplog.messages] == ["Decode attention by varlen failed"]


def test_a_new_pool_gets_new_graphs(rand: Path) -> None:
    made = runner(rand)
    for num_blocks in (30, 60):
        made.reset_pool(num_blocks, 16)
        r = request(0, PROMPTS[4], 8)
        Driver(made, num_blocks, 16).finish([r])
        expected = tiny_models.oracle(rand, r.prompt_token_ids, 8)
        assert r.output_token_ids[: len(expected)] == expected


def test_rehearsing_computes_again_at_every_replay() -> None:
    calls: list[int] = []
    replay = rehearse(lambda: calls.append(1))
    replay()
    assert len(calls) == 2


def test_warming_up_captures_all_sizes_up_to_the_most(rand: Path) -> None:
    made = runner(rand)
    made.warm_up(6)
    assert sorted(made.graphs._steps) == [(1, 16), (2, 16), (4, 16), (8, 16)]
    made.reset_pool(NUM_BLOCKS, 16)
    assert made.graphs._steps, "a pool of the same shape keeps its graphs"


def test_a_prompts_last_token_alone_is_computed_by_the_form_for_prompts(
    rand: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A step of single prompt tokens looks like a decode step, but the graphs hold the form for answers."""
    other = load_fast(tiny_models.rand(tmp_path_factory.mktemp("other"), seed=1), torch.float32).model
    answers = []
    for use_graphs in (True, False):
        model = load_fast(rand, torch.float32).model
        other.embedding, other.head, model.answer_form = model.embedding, model.head, other
        made = TorchRunner(model, NUM_BLOCKS, 16, torch.float32, vocab_size=260, use_graphs=use_graphs)
        requests = [request(i, prompt, 6) for i, prompt in enumerate(PROMPTS[:4])]
        Driver(made, NUM_BLOCKS, 16).finish(requests, chunk=1)
        answers.append([r.output_token_ids for r in requests])
    assert answers[0] == answers[1]
