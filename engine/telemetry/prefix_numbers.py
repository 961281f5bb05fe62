"""Numbers in place of tokens: what a trace may know of prompts and answers.

Owns a tree of all sequences seen lately. Two positions get the same number exactly when the tokens up to and including
them are equal, so the numbers say which requests begin alike, and how far, and nothing else: no token can be read from
them. That is all prefix sharing looks at. Never knows blocks, requests or text.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

Range = tuple[int, int]
"""(first number, how many): that number and those that follow it."""


@dataclass(slots=True, eq=False)
class _Node:
    """A run of positions without a branch, `start` positions away from the root."""

    parent: _Node | None
    start: int
    tokens: array[int] = field(default_factory=lambda: array("q"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    children: dict[int, _Node] = field(default_factory=dict)
    num_pins: int = 0
    used_at: int = 0


@dataclass(slots=True, eq=False)
class Place:
    """Where in the tree one growing sequence ends. Made by `PrefixNumbers.begin`."""

    node: _Node
    length: int = 0


class PrefixNumbers:
    """A radix tree of token sequences; every position that differs from all before it gets the next number.

    At most about `max_tokens` positions are kept: sequences that ended longest ago are forgotten first, and a later
    one that begins like a forgotten one counts as new. Keep more than the KV pool holds, and nothing that could still
    be shared is forgotten.
    """

    def __init__(self, max_tokens: int = 1 << 18) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self._root = _Node(None, 0)
        self._next_number = 0
        self._clock = 0

    def begin(self, token_ids: Sequence[int]) -> tuple[Place, list[Range]]:
        """A new sequence that starts with `token_ids`, and the numbers of these."""
        place = Place(self._root)
        self._root.num_pins += 1
        tokens = array("q", token_ids)
        numbers: array[int] = array("q")
        while len(numbers) < len(tokens):
            numbers.extend(self._advance(place, tokens[len(numbers) :]))
        return place, as_ranges(numbers)

    def extend(self, place: Place, token_id: int) -> int:
        """One more token; returns its number."""
        node = place.node
        if place.length == node.start + len(node.tokens) and not node.children and node.parent is not None:
            # Nobody else goes on from here: the usual case, for every token of every answer.
            number = self._next_number
            node.tokens.append(token_id)
            node.numbers.append(number)
            self._next_number = number + 1
            self.num_tokens += 1
            place.length += 1
            return number
        return self._advance(place, array("q", (token_id,)))[0]

    def end(self, place: Place) -> None:
        """The sequence grows no more; it may be forgotten from now on."""
        self._clock += 1
        place.node.num_pins -= 1
        node: _Node | None = place.node
        while node is not None:
            node.used_at = self._clock
            node = node.parent
        if self.num_tokens > self.max_tokens:
            self._forget()

    def _advance(self, place: Place, tokens: array[int]) -> array[int]:
        """Move along the tree by at least one of `tokens`, growing it where it ends; returns their numbers."""
        node = place.node
        while node.parent is not None and place.length <= node.start:
            node = node.parent  # a split has put this position into a node above
        offset = place.length - node.start
        if offset == len(node.tokens) and tokens[0] in node.children:
            node, offset = node.children[tokens[0]], 0
        if offset < len(node.tokens):
            same = _common(node.tokens, offset, tokens)
            if same:
                self._move(place, node)
                place.length += same
                return node.numbers[offset : offset + same]
            node = self._split(node, offset)
        if node.children or node is self._root:
            node.children[tokens[0]] = leaf = _Node(node, place.length)
            node = leaf
        self._move(place, node)
        return self._grow(place, tokens)

    def _grow(self, place: Place, tokens: array[int]) -> array[int]:
        """Add positions that nobody had before to the leaf at `place`."""
        numbers = array("q", range(self._next_number, self._next_number + len(tokens)))
        self._next_number += len(tokens)
        self.num_tokens += len(tokens)
        place.node.tokens.extend(tokens)
        place.node.numbers.extend(numbers)
        place.length += len(tokens)
        return numbers

    def _move(self, place: Place, node: _Node) -> None:
        place.node.num_pins -= 1
        node.num_pins += 1
        place.node = node

    def _split(self, lower: _Node, offset: int) -> _Node:
        """Put the first `offset` positions of a node into a new one above it, and return that."""
        assert lower.parent is not None
        upper = _Node(lower.parent, lower.start, lower.tokens[:offset], lower.numbers[:offset], used_at=lower.used_at)
        lower.parent.children[upper.tokens[0]] = upper
        lower.parent, lower.start = upper, lower.start + offset
        lower.tokens, lower.numbers = lower.tokens[offset:], lower.numbers[offset:]
        upper.children[lower.tokens[0]] = lower
        return upper

    def _forget(self) -> None:
        """Drop ends of sequences, longest unused first, until a quarter of the room is free again."""
        leaves = [(node.used_at, id(node), node) for node in self._nodes() if not node.children and not node.num_pins]
        heapq.heapify(leaves)
        while leaves and self.num_tokens > 3 * self.max_tokens // 4:
            _, _, node = heapq.heappop(leaves)
            parent = node.parent
            if parent is None:
                continue
            del parent.children[node.tokens[0]]
            self.num_tokens -= len(node.tokens)
            if not parent.children and not parent.num_pins:
                heapq.heappush(leaves, (parent.used_at, id(parent), parent))

    def _nodes(self) -> list[_Node]:
        nodes = [self._root]
        for node in nodes:
            nodes.extend(node.children.values())
        return nodes


def as_ranges(numbers: Sequence[int]) -> list[Range]:
    """Numbers as runs of consecutive ones."""
    ranges: list[Range] = []
    for number in numbers:
        if ranges and sum(ranges[-1]) == number:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((number, 1))
    return ranges


def from_ranges(ranges: Sequence[Range]) -> tuple[int, ...]:
    """The numbers that `as_ranges` was given."""
    return tuple(number for first, count in ranges for number in range(first, first + count))


def _common(ours: array[int], offset: int, theirs: array[int]) -> int:
    """How many of `theirs` equal `ours` from `offset` on."""
    most = min(len(ours) - offset, len(theirs))
    if ours[offset : offset + most] == theirs[:most]:
        return most
    return next(i for i in range(most) if ours[offset + i] != theirs[i])
