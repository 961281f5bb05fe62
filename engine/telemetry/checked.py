"""Reads values out of parsed JSON that may come from anybody: every one is checked for type and size.

Owns the words in which a wrong value is refused. Never knows what the values mean.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

MAX_WHOLE = 2**53 - 1
MAX_TEXT = 500
MAX_ITEMS = 2_000_000
_WORD = re.compile(r"[A-Za-z0-9_.:+-]{1,64}")

T = TypeVar("T")
Reader = Callable[[Any], T]


class TraceError(ValueError):
    """A file is no trace, or a broken one, or one of another version. The words say where and what is wrong."""


def parse_object(text: str | bytes) -> dict[str, Any]:
    """One JSON object. Raises TraceError."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"it is not JSON ({_short(error)})") from None
    return mapping(value)


def mapping(value: Any) -> dict[str, Any]:
    """A JSON object."""
    return _kind(value, dict, "an object")


def whole(value: Any) -> int:
    """A whole number, 0 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_WHOLE:
        raise TraceError(f"expected a whole number, 0 or more, got {_short(value)}")
    return value


def number(value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TraceError(f"expected a number, got {_short(value)}")
    return float(value)


def word(value: Any) -> str:
    """A short word of letters, digits and a few signs."""
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise TraceError(f"expected a short word, got {_short(value)}")
    return value


def text(value: Any) -> str:
    """A few words."""
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise TraceError(f"expected at most {MAX_TEXT} characters of text, got {_short(value)}")
    return value


def plain(value: Any) -> str | int | float | bool | None:
    """A number, a truth value, a few words, or nothing."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, int) and abs(value) <= MAX_WHOLE:
        return value
    return number(value)


def yes_or_no(value: Any) -> bool | None:
    """True, false, or null for what is not known."""
    if value is not None and not isinstance(value, bool):
        raise TraceError(f"expected true or false, got {_short(value)}")
    return value


def plains(value: Any) -> dict[str, Any]:
    """Names with plain values."""
    items = mapping(value)
    if len(items) > 64:
        raise TraceError(f"expected at most 64 names, got {len(items)}")
    return {word(name): plain(item) for name, item in items.items()}


def wholes(value: Any) -> tuple[int, ...]:
    """A list of whole numbers."""
    return tuple(whole(item) for item in listed(value))


def listed(value: Any) -> list[Any]:
    """A list."""
    items: list[Any] = _kind(value, list, "a list")
    if len(items) > MAX_ITEMS:
        raise TraceError(f"expected a list of at most {MAX_ITEMS}, got {len(items)}")
    return items


def pair(first: Reader[Any], second: Reader[Any]) -> Reader[tuple[Any, Any]]:
    """A list of two."""

    def read(value: Any) -> tuple[Any, Any]:
        items = listed(value)
        if len(items) != 2:
            raise TraceError(f"expected two values, got {_short(value)}")
        return first(items[0]), second(items[1])

    return read


def by_id(item: Reader[T]) -> Reader[dict[int, T]]:
    """An object whose names are request ids."""

    def read(value: Any) -> dict[int, T]:
        return {_id(name): item(entry) for name, entry in mapping(value).items()}

    return read


def fields(raw: Mapping[str, Any], readers: Mapping[str, Reader[Any]]) -> dict[str, Any]:
    """What `raw` has of the named fields, read. A field that is missing is left out."""
    values = {}
    for name, reader in readers.items():
        if name in raw:
            try:
                values[name] = reader(raw[name])
            except TraceError as error:
                raise TraceError(f"{name}: {error}") from None
    return values


def require(values: Mapping[str, Any], *names: str) -> None:
    """Raise TraceError when one of the names is missing."""
    missing = [name for name in names if name not in values]
    if missing:
        raise TraceError(f"{', '.join(missing)} is missing")


def _id(name: str) -> int:
    if not (name.isascii() and name.isdigit() and len(name) < 16):
        raise TraceError(f"expected a request id, got {_short(name)}")
    return int(name)


def _kind(value: Any, kind: type, words: str) -> Any:
    if not isinstance(value, kind):
        raise TraceError(f"expected {words}, got {_short(value)}")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _short(value: Any) -> str:
    shown = repr(value) if not isinstance(value, Exception) else str(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
