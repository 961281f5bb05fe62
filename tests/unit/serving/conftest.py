"""Two HTTP servers over a service without an engine: one open, one with a key and locked controls."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from engine.serving.http_app import HttpOptions, build_http_app
from engine.serving.limits import BodyLimits
from tests.http_server import serving
from tests.unit.serving.fake_service import FakeService, FakeTokenizer
from tests.unit.serving.http_answers import KEY

# Each server runs for the whole session; the service behind both is new for every test.
_SERVICE = FakeService()


@pytest.fixture
def service() -> FakeService:
    _SERVICE.__dict__.clear()
    _SERVICE.__init__()  # type: ignore[misc]
    return _SERVICE


@pytest.fixture(scope="session")
def open_server() -> Iterator[httpx.Client]:
    yield from running(HttpOptions("fake", limits=BodyLimits(10_000, 20_000, timeout_s=0.3)))


@pytest.fixture(scope="session")
def locked_server() -> Iterator[httpx.Client]:
    yield from running(HttpOptions("fake", api_key=KEY, are_controls_locked=True))


@pytest.fixture
def client(service: FakeService, open_server: httpx.Client) -> httpx.Client:
    return open_server


@pytest.fixture
def locked(service: FakeService, locked_server: httpx.Client) -> httpx.Client:
    return locked_server


def running(options: HttpOptions) -> Iterator[httpx.Client]:
    with (
        serving(build_http_app(_SERVICE, FakeTokenizer(), options)) as url,  # type: ignore[arg-type]
        httpx.Client(base_url=url) as client,
    ):
        yield client
