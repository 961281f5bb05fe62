"""Where an answer's text must end, found while the text arrives.

Owns the text that might still turn out to be the beginning of a stop string. Never knows tokens.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Takes text in pieces and gives back what is safe to show.

    When a piece completes a stop string, the text is cut where it begins; of several that are complete by then, the one
    that begins first cuts. Only the longest end of the text that begins some stop string is held back. After a match
    nothing more comes out.

    Each stop string is followed by its own automaton (Knuth, Morris and Pratt 1977), so the work per character does not
    grow with the length of the stop strings, and its state is at every moment the length to hold back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._automata = [_Automaton(stop) for stop in stops if stop]
        self._held = ""
        self.is_matched = False

    def feed(self, text: str) -> str:
        """The text that is now safe to show; `is_matched` tells whether the answer ends there."""
        if self.is_matched:
            return ""
        if not self._automata:
            return text
        buffer = self._held + text
        starts = [start for a in self._automata if (start := a.first_match(text, len(self._held))) is not None]
        if starts:
            self.is_matched, self._held = True, ""
            return buffer[: min(starts)]
        safe = len(buffer) - max(automaton.matched for automaton in self._automata)
        self._held = buffer[safe:]
        return buffer[:safe]

    def flush(self) -> str:
        """The text still held back, once no more follows: it began a stop string that never came."""
        held, self._held = self._held, ""
        for automaton in self._automata:
            automaton.matched = 0
        return held


class _Automaton:
    """How much of one stop string the end of the text matches: `matched` characters."""

    def __init__(self, stop: str) -> None:
        self.matched = 0
        self._stop = stop
        self._fallback = [0] * len(stop)  # by length - 1: the next shorter beginning that is also an end
        length = 0
        for position in range(1, len(stop)):
            while length and stop[position] != stop[length]:
                length = self._fallback[length - 1]
            length += stop[position] == stop[length]
            self._fallback[position] = length

    def first_match(self, text: str, offset: int) -> int | None:
        """Read `text`, which stands at `offset`; where the first complete match begins, None if there is none."""
        stop, fallback, matched = self._stop, self._fallback, self.matched
        for position, character in enumerate(text):
            while matched and character != stop[matched]:
                matched = fallback[matched - 1]
            matched += character == stop[matched]
            if matched == len(stop):
                return offset + position + 1 - matched
        self.matched = matched
        return None
