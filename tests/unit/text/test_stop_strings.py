"""Stop strings over pieces of text, against a search in the whole text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.stop_strings import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """What each piece lets out, what the end lets out, and whether a stop string was met."""
    matcher = StopStrings(stops)
    out = [matcher.feed(piece) for piece in pieces]
    return [*out, matcher.flush()], matcher.is_matched


def test_a_stop_string_over_pieces():
    assert run(["e t"], list("one two")) == (["o", "n", "", "", "", "", "", ""], True)


def test_text_held_back_comes_at_the_end():
    assert run(["z!"], list("wxyz")) == (["w", "x", "y", "", "z"], False)


def test_text_that_begins_no_stop_string_flows():
    out, matched = run(["Q" * 40], list("flowing text"))
    assert out == [*"flowing text", ""]
    assert not matched


def test_text_that_stops_matching_comes_at_once():
    assert run(["abcd"], list("abcx")) == (["", "", "", "abcx", ""], False)


def test_the_longest_beginning_is_held_not_more():
    assert run(["aab"], list("aaac")) == (["", "", "a", "aac", ""], False)


def test_the_stop_that_begins_first_cuts():
    assert run(["c", "bcd"], ["abcde"]) == (["a", ""], True)
    assert run(["bcd", "c"], ["abcde"]) == (["a", ""], True)


def test_the_stop_that_is_complete_first_cuts_when_pieces_are_small():
    assert run(["bcd", "c"], list("abcde"))[0] == ["a", "", "b", "", "", ""]


def test_nothing_comes_after_a_match():
    matcher = StopStrings(["b"])
    assert matcher.feed("ab") == "a"
    assert matcher.feed("cd") == ""
    assert matcher.flush() == ""


def test_empty_stop_strings_stop_nothing():
    assert run(["", ""], ["ab", "", "c"]) == (["ab", "", "c", ""], False)


def test_empty_pieces_change_nothing():
    assert run(["ab"], ["", "a", "", "b", ""]) == (["", "", "", "", "", ""], True)


@pytest.mark.parametrize("length", [1, 1000, 100_000])
def test_work_does_not_grow_with_the_stop_strings(length):
    """Linear in the text: a stop string that almost matches everywhere must not be compared again and again."""
    matcher = StopStrings(["a" * length + "b"] * 16)
    text = "".join(matcher.feed("a") for _ in range(3000)) + matcher.flush()
    assert text == "a" * 3000


@settings(max_examples=400, deadline=None)
@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 30), max_size=10),
)
def test_like_a_search_after_every_piece(text, stops, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    matcher, shown, read = StopStrings(stops), "", ""
    for piece in pieces:
        shown += matcher.feed(piece)
        read += piece
        found = [at for stop in stops if (at := read.find(stop)) >= 0]
        assert matcher.is_matched == bool(found)
        if found:
            assert shown == read[: min(found)]
            return
        held = max(k for stop in stops for k in range(len(stop)) if read.endswith(stop[:k]))
        assert shown == read[: len(read) - held]
    assert shown + matcher.flush() == text
