"""Why the engine service takes no request now, as opposed to a request that is wrong in itself (`InvalidRequest`)."""

from __future__ import annotations


class QueueFull(Exception):
    """As many requests wait as are allowed to; the words say how many. Try again later."""


class EngineDead(Exception):
    """The engine runs no steps: it failed, was stopped, or has not started; the words say which."""
