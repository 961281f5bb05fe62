"""Counts answered HTTP requests, for the dashboards that ask for `http_requests_total`.

Owns the counter; its labels are a route's own path, never what somebody typed into one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OTHER = "other"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpCounts(Collector):
    """`http_requests_total{handler, method, status}`; status is a class such as "2xx"."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def add(self, handler: str, method: str, status: int) -> None:
        """One request was answered. Called in the event loop alone."""
        self._counts[handler, method if method in _METHODS else OTHER, f"{status // 100}xx"] += 1

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        family = CounterMetricFamily("http_requests", "HTTP requests answered.", labels=("handler", "method", "status"))
        for labels, count in sorted(self._counts.copy().items()):
            family.add_metric(labels, count)
        yield family


class CountRequests:
    """ASGI middleware that counts requests to `paths`, each by its own name, and all others as one."""

    def __init__(self, app: ASGIApp, counts: HttpCounts, paths: frozenset[str]) -> None:
        self._app, self._counts, self._paths = app, counts, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI's entry."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                handler = scope["path"] if scope["path"] in self._paths else OTHER
                self._counts.add(handler, scope["method"], message["status"])
            await send(message)

        await self._app(scope, receive, watch)
