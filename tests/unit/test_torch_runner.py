"""The torch runner: transformers' tokens however a plan is cut, and no request harmed by another."""

from pathlib import Path

import pytest
import torch

from engine.model.checkpoint import load
from engine.scheduling.request import Request
from engine.torch_runner import TorchRunner
from tests import tiny_models
from tests.unit.runner_driver import Driver, request

PROMPTS = [[4 + (7 * i + 3 * j) % 250 for i in range(n)] for j, n in enumerate((1, 5, 16, 17, 31, 32, 33, 70, 150))]
NUM_BLOCKS = 400


@pytest.fixture(scope="module")
def rand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.rand(tmp_path_factory.mktemp("rand"))


def runner(folder: Path, block_size: int = 16, dtype: torch.dtype = torch.float32, fill: float = 0.0) -> TorchRunner:
    model, _ = load(folder, dtype)
    made = TorchRunner(model, NUM_BLOCKS, block_size, dtype, vocab_size=tiny_models.NUM_TOKENS)
    made.kv.storage[:, :, : NUM_BLOCKS * made.config.num_key_value_heads] = fill
    return made


def assert_is_oracle(r: Request, folder: Path) -> None:
    """The answer is transformers', which ends at an end-of-sequence id; the driver goes on."""
    expected = tiny_models.oracle(folder, r.prompt_token_ids, r.max_tokens)
    assert len(r.output_token_ids) == r.max_tokens
    assert r.output_token_ids[: len(expected)] == expected


@pytest.mark.parametrize("chunk", [1, 7, 16, 128, 1000])
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_greedy_tokens_are_those_of_transformers(rand: Path, chunk: int, block_size: int) -> None:
    driver = Driver(runner(rand, block_size, fill=torch.nan), NUM_BLOCKS, block_size)
    requests = [request(i, prompt) for i, prompt in enumerate(PROMPTS if block_size > 1 else PROMPTS[:7])]
    driver.finish(requests, chunk)
    for r in requests:
        assert_is_oracle(r, rand)


def test_every_key_counts_once(tmp_path: Path) -> None:
    folder = tiny_models.hist(tmp_path)
    driver = Driver(runner(folder, 5, fill=torch.nan), NUM_BLOCKS, 5)
    requests = [request(i, prompt, 20) for i, prompt in enumerate(PROMPTS)]
    driver.finish(requests, chunk=7, num_inactive=3)
    for r in requests:
        assert_is_oracle(r, folder)


def test_preempted_requests_go_on_where_they_were(rand: Path) -> None:
    driver = Driver(runner(rand), NUM_BLOCKS, 16)
    requests = [request(i, prompt, 12) for i, prompt in enumerate(PROMPTS)]
    for step in range(5):
        driver.run([driver.scheduled(r, 1000) for r in requests])
        driver.preempt(requests[step])
    driver.finish(requests, chunk=20)
    for r in requests:
        assert_is_oracle(r, rand)


def test_siblings_share_full_blocks_and_own_their_last(rand: Path) -> None:
    driver = Driver(runner(rand, fill=torch.nan), NUM_BLOCKS, 16)
    prompt = PROMPTS[-2][:20]
    sampling = {"temperature": 1.0, "max_tokens": 20}
    family = [request(i, prompt, seed=100 + i, **sampling) for i in range(3)]
    driver.run([driver.scheduled(family[0], 19)])  # all but the last token: the children must sample their own first
    for child in family[1:]:
        driver.fork(family[0], child)
    driver.finish(family)
    for r in family:
        alone = request(r.request_id + 10, prompt, seed=r.seed, **sampling)
        Driver(runner(rand), NUM_BLOCKS, 16).finish([alone])
        assert r.output_token_ids == alone.output_token_ids


def test_padding_and_inactive_slots_change_nothing(rand: Path) -> None:
    driver = Driver(runner(rand, fill=torch.nan), NUM_BLOCKS, 16)
    requests = [request(i, prompt) for i, prompt in enumerate(PROMPTS)]
    longest = max(map(len, PROMPTS))
    driver.run([driver.scheduled(r, 1000, longest - r.num_prompt_tokens) for r in requests], num_inactive=2)
    driver.finish(requests[:4] + requests[5:], num_inactive=3)
    for r in requests[:4] + requests[5:]:
        assert_is_oracle(r, rand)


def test_a_request_with_nan_logits_fails_alone_and_leaves_clean_blocks(tmp_path: Path) -> None:
    folder = tiny_models.poison(tmp_path)
    poisoned = tiny_models.token_ids("ab!cd")
    prompts = [[t for t in prompt if t != poisoned[2]] for prompt in PROMPTS[:5]]
    driver = Driver(runner(folder), 12, 16)
    clean = [request(i, prompt) for i, prompt in enumerate(prompts)]
    driver.finish([*clean, request(99, poisoned)])
    assert list(driver.errors) == [99]
    assert "NaN" in driver.errors[99]
    again = [request(100 + i, prompt) for i, prompt in enumerate(prompts)]
    driver.finish(again)
    for r in [*clean, *again]:
        assert_is_oracle(r, folder)


def test_a_changed_block_table_is_noticed_also_when_its_length_stays(rand: Path) -> None:
    """A copy-on-write replaces the last block of a table; a preempted request may return with other blocks."""
    driver = Driver(runner(rand), NUM_BLOCKS, 16)
    r = request(0, PROMPTS[4], 10)
    for _ in range(3):
        driver.run([driver.scheduled(r, 1000)])
        driver.preempt(r)
        driver.free.reverse()
    driver.finish([r])
    assert_is_oracle(r, rand)


def test_many_more_requests_than_there_were_table_rows(rand: Path) -> None:
    driver = Driver(runner(rand), NUM_BLOCKS, 16)
    expected = tiny_models.oracle(rand, PROMPTS[3], 3)
    for wave in range(4):
        requests = [request(wave * 100 + i, PROMPTS[3], 3) for i in range(10 + 30 * wave)]
        driver.finish(requests)
        assert all(r.output_token_ids == expected for r in requests)


def test_logits_are_asked_only_where_a_token_is_sampled(rand: Path) -> None:
    made = runner(rand)
    seen = []
    logits = made.model.logits
    made.model.logits = lambda hidden: seen.append(len(hidden)) or logits(hidden)
    driver = Driver(made, NUM_BLOCKS, 16)
    first, second = request(0, PROMPTS[-1], 1), request(1, PROMPTS[1], 1)
    output = driver.run([driver.scheduled(first, 100), driver.scheduled(second, 100)])
    assert seen == [1]
    assert list(output.sampled) == [1]


def test_ids_past_the_tokenizer_are_never_sampled(tmp_path: Path) -> None:
    folder = tiny_models.rand(tmp_path, vocab_size=288, tie_word_embeddings=False)
    driver = Driver(runner(folder), NUM_BLOCKS, 16)
    requests = [request(i, prompt) for i, prompt in enumerate(PROMPTS[:4])]
    driver.finish(requests)
    assert max(t for r in requests for t in r.output_token_ids) < tiny_models.NUM_TOKENS


def test_a_new_pool_forgets_and_may_have_other_blocks(rand: Path) -> None:
    made = runner(rand)
    for num_blocks, block_size in ((50, 16), (200, 3)):
        made.reset_pool(num_blocks, block_size)
        r = request(0, PROMPTS[6])
        Driver(made, num_blocks, block_size).finish([r])
        assert_is_oracle(r, rand)


def test_a_pool_too_large_leaves_the_old_one(rand: Path) -> None:
    made = runner(rand)
    with pytest.raises(MemoryError, match="GiB"):
        made.reset_pool(10**12, 16)
    r = request(0, PROMPTS[6])
    Driver(made, NUM_BLOCKS, 16).finish([r])
    assert_is_oracle(r, rand)


def test_no_global_state_is_changed_and_times_are_told(rand: Path) -> None:
    before = torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()
    driver = Driver(runner(rand), NUM_BLOCKS, 16)
    output = driver.run([driver.scheduled(request(0, PROMPTS[2]), 1000)])
    assert (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()) == before
    assert min(output.batch_s, output.forward_s, output.sample_s) > 0


def test_very_different_lengths_decode_in_groups_of_their_own(rand: Path) -> None:
    made = runner(rand)
    driver = Driver(made, NUM_BLOCKS, 16)
    prompts = [PROMPTS[-1] * 12, *([PROMPTS[1]] * 8), PROMPTS[-1]]
    requests = [request(i, prompt, 4) for i, prompt in enumerate(prompts)]
    groups = []
    passes = made.passes
    made.passes = lambda plan: (
        groups.append([len(g.lengths) for _, one in passes(plan) for g in one.decode]) or passes(plan)
    )
    driver.finish(requests, chunk=2000)
    assert groups[-1] == [1, 9]
    for r in requests:
        assert_is_oracle(r, rand)
