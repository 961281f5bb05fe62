"""The sampler against transformers' own logits processors, and its promise that no row feels another."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.model import sampler
from engine.model.sampler import SampleResult, SamplingRow, sample

NUM_QUANTILES = 2000


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(8, 260, generator=torch.Generator().manual_seed(1)) * 3


@pytest.fixture
def quantiles(monkeypatch):
    """Replaces the random number by (seed + 0.5) / NUM_QUANTILES: seeds 0..NUM_QUANTILES-1 walk through the whole
    distribution, so that its probabilities can be read off without any luck."""
    monkeypatch.setattr(sampler, "uniform", lambda seed, output_index: (seed + 0.5) / NUM_QUANTILES)


def token_of(result: SampleResult | str) -> int:
    assert isinstance(result, SampleResult), result
    return result.token_id


def drawn_frequencies(row_logits: torch.Tensor, **settings) -> torch.Tensor:
    rows = [SamplingRow(greedy=False, seed=seed, **settings) for seed in range(NUM_QUANTILES)]
    results = sample(row_logits.expand(NUM_QUANTILES, -1), rows)
    counts = torch.bincount(torch.tensor([token_of(r) for r in results]), minlength=row_logits.numel())
    return counts / NUM_QUANTILES


def transformers_probabilities(row_logits: torch.Tensor, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    processors = LogitsProcessorList()
    processors.append(TemperatureLogitsWarper(temperature))
    if top_k:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(TopPLogitsWarper(top_p))
    if min_p:
        processors.append(MinPLogitsWarper(min_p))
    return processors(torch.zeros(1, 1, dtype=torch.long), row_logits[None].clone())[0].softmax(-1)


FILTERS = [
    {},
    {"temperature": 0.5},
    {"temperature": 3.0},
    {"top_k": 7},
    {"top_k": 1},
    {"top_p": 0.8},
    {"top_p": 0.3, "temperature": 2.0},
    {"min_p": 0.05},
    {"top_k": 20, "top_p": 0.7},
    {"top_k": 30, "top_p": 0.95, "min_p": 0.02, "temperature": 1.5},
    {"top_p": 0.9, "min_p": 0.1},
]


@pytest.mark.parametrize("settings", FILTERS, ids=str)
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_distribution_is_that_of_transformers(quantiles, settings, scale):
    row = torch.randn(64, generator=torch.Generator().manual_seed(5)) * scale
    expected = transformers_probabilities(row, **settings)
    frequencies = drawn_frequencies(row, **settings)
    assert set(frequencies.nonzero().flatten().tolist()) <= set(expected.nonzero().flatten().tolist())
    # Inverting the distribution at equidistant points meets each token's share up to one point at either end.
    assert (frequencies - expected).abs().max() <= 1.01 / NUM_QUANTILES


@pytest.mark.parametrize(
    "settings",
    [{"top_p": 0.2}, {"top_p": 0.9}, {"top_k": 300}, {"top_k": 5000, "top_p": 0.99}, {"min_p": 0.5}, {"top_k": 5999}],
    ids=str,
)
def test_nuclei_wider_than_the_first_candidates_are_exact(quantiles, settings):
    """A flat distribution over 6,000 tokens needs hundreds to thousands of ranked columns."""
    row = torch.randn(6000, generator=torch.Generator().manual_seed(6)) * 0.3
    kept = transformers_probabilities(row, **settings)
    order = row.argsort(descending=True)
    cumulative = kept.double()[order].cumsum(0)
    rows = [SamplingRow(greedy=False, seed=seed, **settings) for seed in range(0, NUM_QUANTILES, 40)]
    results = sample(row.expand(len(rows), -1), rows)
    for settings_row, result in zip(rows, results, strict=True):
        target = (settings_row.seed + 0.5) / NUM_QUANTILES
        drawn = (order == token_of(result)).nonzero().item()
        before = cumulative[drawn - 1].item() if drawn else 0.0
        assert kept[token_of(result)] > 0
        assert before - 1e-5 <= target <= cumulative[drawn].item() + 1e-5


def test_chi_square_over_a_fixed_set_of_seeds():
    """The real random numbers: 20,000 seeds at index 0, and 20,000 indexes of one seed, over 16 tokens."""
    row = torch.randn(16, generator=torch.Generator().manual_seed(2))
    expected = row.softmax(0) * 20_000
    for settings in (
        [{"seed": seed} for seed in range(20_000)],
        [{"seed": 7, "output_index": index} for index in range(20_000)],
    ):
        results = sample(row.expand(20_000, -1), [SamplingRow(greedy=False, **s) for s in settings])
        counts = torch.bincount(torch.tensor([token_of(r) for r in results]), minlength=16)
        chi_square = ((counts - expected) ** 2 / expected).sum().item()
        assert chi_square < 37.7  # 99.9 % quantile for 15 degrees of freedom; the seeds are fixed, so is the outcome


def test_random_numbers_of_neighbouring_seeds_and_indexes_are_unrelated():
    grid = torch.tensor(
        [[sampler.uniform(seed, index) for index in range(200)] for seed in range(200)], dtype=torch.float64
    )
    assert grid.min() > 0
    assert grid.max() < 1
    assert grid.unique().numel() == grid.numel()
    centred = grid - 0.5
    for shifted in (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1], centred[1:, 1:] * centred[:-1, :-1]):
        assert abs(shifted.mean().item() * 12) < 4 / math.sqrt(shifted.numel())
    assert abs((centred * centred.T).triu(1).sum().item() * 12) < 4 * math.sqrt(200 * 199 / 2)


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1, 2**80, -(2**70)])
def test_any_integer_is_a_seed(logits, seed):
    row = SamplingRow(greedy=False, seed=seed)
    assert sample(logits[:1], [row]) == sample(logits[:1], [row])


@pytest.mark.parametrize("penalty", [0.5, 1.3, 50.0])
def test_repetition_penalty_is_that_of_transformers(logits, penalty):
    prompt, output = [5, 5, 9, 200], [9, 17, 17]
    row = SamplingRow(repetition_penalty=penalty, prompt_token_ids=prompt, output_token_ids=output)
    changed = sampler._with_penalties(logits[:1], [row])
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + output]), logits[:1].clone())
    assert torch.equal(changed, expected)


def test_presence_and_frequency_count_the_answer_only(logits):
    row = SamplingRow(
        presence_penalty=0.5, frequency_penalty=0.25, prompt_token_ids=[3, 3], output_token_ids=[7, 8, 8, 8]
    )
    expected = logits[:1].clone()
    expected[0, 7] -= 0.5 + 0.25
    expected[0, 8] -= 0.5 + 3 * 0.25
    assert torch.allclose(sampler._with_penalties(logits[:1], [row]), expected)


def test_penalties_move_the_greedy_token(logits):
    best = logits[0].argmax().item()
    second = logits[0].topk(2).indices[1].item()
    assert token_of(sample(logits[:1], [SamplingRow()])[0]) == best
    punished = SamplingRow(frequency_penalty=2.0, output_token_ids=[best] * 50)
    assert token_of(sample(logits[:1], [punished])[0]) == second
    in_prompt = SamplingRow(frequency_penalty=2.0, prompt_token_ids=[best] * 50)
    assert token_of(sample(logits[:1], [in_prompt])[0]) == best


def test_logits_are_left_as_they_were(logits):
    before = logits.clone()
    rows = [
        SamplingRow(repetition_penalty=2.0, prompt_token_ids=range(260)),
        SamplingRow(min_tokens=3, eos_token_ids=[1, 2]),
        *[SamplingRow(greedy=False, top_k=3)] * 6,
    ]
    sample(logits, rows)
    assert torch.equal(logits, before)


def test_end_tokens_are_forbidden_until_the_minimum(logits):
    logits[0, [1, 2, 3]] = torch.tensor([50.0, 60.0, 70.0])
    ends = frozenset({1, 2, 3, 9999})
    for greedy in (True, False):
        early = SamplingRow(greedy=greedy, min_tokens=4, output_index=3, eos_token_ids=ends)
        late = SamplingRow(greedy=greedy, min_tokens=4, output_index=4, eos_token_ids=ends)
        assert token_of(sample(logits[:1], [early])[0]) not in ends
        assert token_of(sample(logits[:1], [late])[0]) == 3


NEIGHBOURS = [
    SamplingRow(greedy=False, temperature=2.0, seed=1),
    SamplingRow(greedy=False, top_k=3, seed=2),
    SamplingRow(greedy=False, top_p=0.5, min_p=0.01, seed=3, logprobs=4),
    SamplingRow(repetition_penalty=1.5, prompt_token_ids=range(100), frequency_penalty=1.0, output_token_ids=[5, 6]),
    SamplingRow(),
    SamplingRow(greedy=False, seed=5, top_p=0.999, temperature=5.0),
    SamplingRow(greedy=False, seed=6, min_tokens=9, eos_token_ids=[1, 2, 3], logprobs=0),
    SamplingRow(logprobs=2, presence_penalty=-1.0, output_token_ids=[8]),
]


def test_every_row_is_what_it_is_alone(logits):
    """Also in other company, in every rotation: settings follow the row, not its place."""
    alone = [sample(logits[i : i + 1], [row])[0] for i, row in enumerate(NEIGHBOURS)]
    for turn in range(len(NEIGHBOURS)):
        order = [(i + turn) % len(NEIGHBOURS) for i in range(len(NEIGHBOURS))]
        together = sample(logits[order], [NEIGHBOURS[i] for i in order])
        assert together == [alone[i] for i in order]
    for one, other in itertools.permutations(range(len(NEIGHBOURS)), 2):
        assert sample(logits[[one, other]], [NEIGHBOURS[one], NEIGHBOURS[other]]) == [alone[one], alone[other]]


def test_wide_and_narrow_nuclei_side_by_side_are_what_they_are_alone():
    """One row is done with the first candidates, its neighbour needs the full sort."""
    flat, peaked = torch.zeros(6000), torch.zeros(6000)
    peaked[[10, 20, 30]] = 20.0
    rows = [SamplingRow(greedy=False, top_p=0.9, seed=seed) for seed in (1, 2, 3, 4)]
    logits = torch.stack([flat, peaked, flat, peaked])
    alone = [sample(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    assert sample(logits, rows) == alone
    assert {token_of(alone[1]), token_of(alone[3])} <= {10, 20, 30}


def test_a_request_neither_reads_nor_reseeds_the_process(logits):
    rows = [SamplingRow(greedy=False, seed=1), SamplingRow(greedy=False, seed=2, top_p=0.9)]
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = sample(logits[:2], rows)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    assert sample(logits[:2], rows) == first


def test_equal_settings_and_other_seeds_differ():
    flat = torch.zeros(1, 260)
    tokens = {token_of(sample(flat, [SamplingRow(greedy=False, seed=s)])[0]) for s in range(40)}
    assert len(tokens) > 25
    steps = {token_of(sample(flat, [SamplingRow(greedy=False, seed=3, output_index=i)])[0]) for i in range(40)}
    assert len(steps) > 25


@pytest.mark.parametrize("temperature", [1e-5, 1e-4, 1e-2])
def test_small_temperatures_stay_finite_and_take_the_best(logits, temperature):
    for extra in ({}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}):
        results = sample(
            logits, [SamplingRow(greedy=False, temperature=temperature, seed=s, **extra) for s in range(8)]
        )
        assert [token_of(r) for r in results] == logits.argmax(1).tolist()


def test_huge_temperature_is_uniform(quantiles):
    row = torch.randn(16, generator=torch.Generator().manual_seed(3)) * 10
    frequencies = drawn_frequencies(row, temperature=1e300)
    assert (frequencies - 1 / 16).abs().max() <= 1.01 / NUM_QUANTILES


@pytest.mark.parametrize("top_k", [0, -1, 260, 261, 10**6])
def test_top_k_past_the_vocabulary_is_off(logits, top_k):
    for seed in range(20):
        plain = sample(logits[:1], [SamplingRow(greedy=False, temperature=3.0, seed=seed)])
        assert sample(logits[:1], [SamplingRow(greedy=False, temperature=3.0, seed=seed, top_k=top_k)]) == plain
        filtered = sample(logits[:1], [SamplingRow(greedy=False, temperature=3.0, seed=seed, top_p=0.5)])
        both = SamplingRow(greedy=False, temperature=3.0, seed=seed, top_p=0.5, top_k=top_k)
        assert sample(logits[:1], [both]) == filtered


@pytest.mark.parametrize("settings", [{"top_p": 1e-9}, {"top_p": 0.0}, {"top_k": 1}, {"min_p": 1.0}], ids=str)
def test_the_narrowest_filter_is_greedy(logits, settings):
    results = sample(logits, [SamplingRow(greedy=False, seed=s, temperature=4.0, **settings) for s in range(8)])
    assert [token_of(r) for r in results] == logits.argmax(1).tolist()


@pytest.mark.parametrize("settings", [{"top_p": 1e-9}, {"top_k": 1}], ids=str)
@pytest.mark.parametrize("width", [260, 6000])
def test_of_equally_likely_tokens_the_lower_id_ranks_first(settings, width):
    """Low-precision logits tie often; a filter that keeps one token keeps the one that greedy takes."""
    row = torch.zeros(1, width)
    row[0, [40, 41, 200]] = 2.0
    for seed in range(10):
        assert token_of(sample(row, [SamplingRow(greedy=False, seed=seed, **settings)])[0]) == 40
    tied = torch.zeros(1, width)
    assert {token_of(sample(tied, [SamplingRow(greedy=False, seed=s, top_k=3)])[0]) for s in range(60)} == {0, 1, 2}


def test_impossible_tokens_are_never_drawn():
    row = torch.full((1, 260), -math.inf)
    row[0, [17, 90]] = torch.tensor([0.0, 1.0])
    for temperature, settings in itertools.product(
        (9.0, 1e300), ({}, {"top_p": 0.99}, {"top_k": 100}, {"min_p": 1e-9})
    ):
        rows = [SamplingRow(greedy=False, seed=s, temperature=temperature, **settings) for s in range(64)]
        assert {token_of(r) for r in sample(row.expand(64, -1), rows)} == {17, 90}


def test_padded_columns_are_never_chosen_nor_counted(logits):
    padded = torch.cat([logits, torch.full((8, 28), 1000.0)], dim=1)
    padded[0, 280] = math.nan
    assert sample(padded, NEIGHBOURS, vocab_size=260) == sample(logits, NEIGHBOURS)
    everything = sample(padded[:1], [SamplingRow(logprobs=10**6)], vocab_size=260)[0]
    assert isinstance(everything, SampleResult)
    assert len(everything.top_logprobs) == 260
    assert sum(math.exp(p) for _, p in everything.top_logprobs) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("bad", "word"), [(math.nan, "NaN"), (math.inf, "infinite"), (-math.inf, "all minus infinity")]
)
@pytest.mark.parametrize("row", NEIGHBOURS, ids=range(len(NEIGHBOURS)))
def test_broken_logits_fail_their_own_row_alone(logits, row, bad, word):
    good = sample(logits, NEIGHBOURS)
    broken = logits.clone()
    broken[3] = bad
    rows = [*NEIGHBOURS[:3], row, *NEIGHBOURS[4:]]
    results = sample(broken, rows)
    assert isinstance(results[3], str)
    assert word in results[3]
    assert results[:3] + results[4:] == good[:3] + good[4:]


def test_one_nan_among_good_logits_fails_the_row(logits):
    logits[2, 77] = math.nan
    assert [isinstance(r, str) for r in sample(logits, NEIGHBOURS)] == [i == 2 for i in range(8)]


def test_log_probabilities_are_of_the_raw_distribution(logits):
    """Before temperature, penalties and filters; the alternatives best first."""
    raw = logits.log_softmax(1)
    for settings in (
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 1},
        {"repetition_penalty": 3.0, "prompt_token_ids": range(260)},
    ):
        rows = [SamplingRow(greedy=False, seed=s, logprobs=5, **settings) for s in range(8)]
        for row_raw, result in zip(raw, sample(logits, rows), strict=True):
            assert isinstance(result, SampleResult)
            assert result.logprob == pytest.approx(row_raw[result.token_id].item(), abs=1e-6)
            best = row_raw.topk(5)
            assert [i for i, _ in result.top_logprobs] == best.indices.tolist()
            assert [p for _, p in result.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_each_row_gets_the_number_of_alternatives_it_asked_for(logits):
    rows = [SamplingRow(logprobs=n) for n in (None, 0, 1, 5, 260, 10**9)]
    results = sample(logits[:6], rows)
    assert [len(r.top_logprobs) for r in results if isinstance(r, SampleResult)] == [0, 0, 1, 5, 260, 260]
    assert results[0] == SampleResult(logits[0].argmax().item())
    assert isinstance(results[1], SampleResult)
    assert results[1].logprob is not None


def test_log_probabilities_are_valid_json():
    row = torch.full((1, 260), -math.inf)
    row[0, 3] = 0.0
    (result,) = sample(row, [SamplingRow(logprobs=5)])
    assert isinstance(result, SampleResult)
    text = json.dumps([result.logprob, result.top_logprobs], allow_nan=False)
    assert "-9999.0" in text
    assert result.logprob == 0.0


def test_a_greedy_step_makes_one_pass(logits, monkeypatch):
    """No copy, no softmax, no sort, no random number where nobody asks for one."""
    for name in ("_flat", "_drawn", "_logprob_columns", "uniform"):
        monkeypatch.setattr(sampler, name, lambda *_: pytest.fail("a greedy step does more than it must"))
    assert sampler._with_penalties(logits, [SamplingRow()] * 8) is logits
    assert [token_of(r) for r in sample(logits, [SamplingRow()] * 8)] == logits.argmax(1).tolist()


def test_no_rows_and_wrong_numbers_of_rows(logits):
    assert sample(logits[:0], []) == []
    with pytest.raises(ValueError, match="8 rows of logits for 2"):
        sample(logits, [SamplingRow()] * 2)


def test_low_precision_logits_are_read_in_float32(logits):
    low = logits.to(torch.bfloat16)
    rows = [SamplingRow(greedy=False, seed=s, logprobs=2) for s in range(8)]
    assert sample(low, rows) == sample(low.float(), rows)
