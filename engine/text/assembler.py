"""An answer's text as it grows: detokenized, cut at stop strings, never showing what may still be taken back.

Owns one answer's text. Streaming or not, and when the engine asks whether an answer is over, this one class decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.text.detokenizer import make_detokenizer
from engine.text.stop_strings import StopStrings
from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one token adds to the answer's text, and whether the text ends with it at a stop string."""

    text: str
    stopped: bool = False


class TextAssembler:
    """Token ids in, text out. The first `min_tokens` tokens cannot complete or begin a stop string (as in vLLM).

    A stop string that names a special token (`<|eot_id|>`) matches although special tokens never show: if any does,
    matching reads the text with the special tokens written out, and what is shown leaves them out again.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), min_tokens: int = 0) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = make_detokenizer(tokenizer)
        self._stops = StopStrings(stop)
        self._num_free_tokens = min_tokens
        specials = tokenizer.special_texts
        self._reads_specials = any(name in text for text in stop for name in specials.values())
        self._pieces: deque[tuple[str, bool]] = deque()  # text read but not yet safe, and whether it shows

    def push(self, token_id: int) -> TextDelta:
        """Take the next token. After a stop every further token adds nothing."""
        if self._stops.is_matched:
            return TextDelta("", True)
        text, shows = self._detokenizer.push(token_id), True
        if self._reads_specials and token_id in self._tokenizer.special_texts:
            text, shows = self._tokenizer.special_texts[token_id], False
        if self._num_free_tokens > 0:
            self._num_free_tokens -= 1
            return TextDelta(text if shows else "")
        return TextDelta(self._shown(text, shows), self._stops.is_matched)

    def finish(self) -> str:
        """The text still held back, once no token follows."""
        if self._stops.is_matched:
            return ""
        text = self._shown(self._detokenizer.flush(), True)
        return text if self._stops.is_matched else text + self._released(len(self._stops.flush()))

    def _shown(self, text: str, shows: bool) -> str:
        self._pieces.append((text, shows))
        return self._released(len(self._stops.feed(text)))

    def _released(self, num_characters: int) -> str:
        """Take that many characters off the waiting pieces; those that show."""
        shown = []
        while num_characters > 0:
            text, shows = self._pieces.popleft()
            if len(text) > num_characters:
                self._pieces.appendleft((text[num_characters:], shows))
            if shows:
                shown.append(text[:num_characters])
            num_characters -= len(text)
        return "".join(shown)


def stop_checker(tokenizer: Tokenizer, stop: Sequence[str], min_tokens: int = 0) -> Callable[[int], bool] | None:
    """For the engine: told every new token of one answer in turn, whether it completes a stop string.

    None without stop strings, so that such requests cost nothing.
    """
    if not stop:
        return None
    assembler = TextAssembler(tokenizer, stop, min_tokens)
    return lambda token_id: assembler.push(token_id).stopped
