"""Numbers in place of tokens: equal exactly where everything up to there is equal."""

from __future__ import annotations

import random

import pytest

from engine.telemetry.prefix_numbers import PrefixNumbers, as_ranges, from_ranges


def test_ranges_say_the_same_as_numbers():
    numbers = (0, 1, 2, 7, 8, 3, 3, 4)
    assert as_ranges(numbers) == [(0, 3), (7, 2), (3, 1), (3, 2)]
    assert from_ranges(as_ranges(numbers)) == numbers


def test_a_common_beginning_has_the_same_numbers_and_nothing_after_it_has():
    tree = PrefixNumbers()
    _, first = tree.begin([5, 6, 7, 8])
    _, second = tree.begin([5, 6, 9, 8])
    assert first == [(0, 4)]
    assert second == [(0, 2), (4, 2)]  # 8 comes after another beginning: another number


def test_the_same_token_after_another_beginning_is_another_number():
    tree = PrefixNumbers()
    _, first = tree.begin([1, 1, 1])
    assert len(set(from_ranges(first))) == 3


def test_an_answer_that_a_later_prompt_repeats_is_recognised():
    tree = PrefixNumbers()
    place, _ = tree.begin([1, 2])
    answer = [tree.extend(place, token) for token in (3, 4)]
    tree.end(place)
    _, prompt = tree.begin([1, 2, 3, 4, 5])
    assert from_ranges(prompt)[2:4] == tuple(answer)


@pytest.mark.parametrize("seed", range(25))
def test_numbers_are_equal_exactly_where_prefixes_are(seed: int):
    rng = random.Random(seed)
    tree = PrefixNumbers(max_tokens=1 << 30)
    number_of: dict[tuple[int, ...], int] = {}
    live: list[tuple[object, list[int], list[int]]] = []
    for _ in range(300):
        if rng.random() < 0.3 or not live:
            tokens = [rng.randrange(3) for _ in range(rng.randint(1, 12))]
            place, ranges = tree.begin(tokens)
            live.append((place, tokens, list(from_ranges(ranges))))
        else:
            index = rng.randrange(len(live))
            place, tokens, numbers = live[index]
            if rng.random() < 0.1:
                tree.end(place)
                live.pop(index)
            else:
                tokens.append(rng.randrange(3))
                numbers.append(tree.extend(place, tokens[-1]))
        for _, tokens, numbers in live:
            for i, number in enumerate(numbers):
                assert number_of.setdefault(tuple(tokens[: i + 1]), number) == number
    assert len(set(number_of.values())) == len(number_of)


def test_it_forgets_what_ended_longest_ago_and_never_what_still_grows():
    tree = PrefixNumbers(max_tokens=100)
    kept, kept_numbers = tree.begin(range(10_000, 10_030))
    for i in range(50):
        place, _ = tree.begin(range(100 * i, 100 * i + 20))
        tree.end(place)
        assert tree.num_tokens <= 100 + 30
    _, again = tree.begin(range(10_000, 10_030))
    assert again == kept_numbers
    _, newest = tree.begin(range(4900, 4920))
    assert newest[0][0] < tree.begin([77])[1][0][0]  # it was still known
    _, oldest = tree.begin(range(20))
    assert oldest == [(30 + 50 * 20 + 1, 20)]  # it was not: new numbers
    assert tree.extend(kept, 5) > oldest[0][0]
