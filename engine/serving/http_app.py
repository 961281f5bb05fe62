"""All HTTP routes but the page, wired to one service.

Owns which routes there are, in what order requests pass the checks, and the answers to wrong paths and methods.
Never knows gradio: whoever wants a page mounts it on the app that comes out of here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from starlette.routing import BaseRoute, Route

from engine.serving.access import EchoRequestId, RequireApiKey
from engine.serving.engine_api import Control, engine_router
from engine.serving.errors import ApiError, install_error_handlers
from engine.serving.http_counts import CountRequests, HttpCounts
from engine.serving.json_body import component_schemas
from engine.serving.limits import BodyLimits, LimitBodies
from engine.serving.openai_api import openai_router
from engine.serving.openai_types import ChatRequest, CompletionRequest
from engine.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from engine.serving.remote_texts import RemoteTexts
    from engine.serving.service import EngineService
    from engine.text.tokenizer import Tokenizer

_ALL_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """What the command line says about HTTP. `api_key` None leaves the API open."""

    model_name: str
    api_key: str | None = None
    are_controls_locked: bool = False
    limits: BodyLimits = field(default_factory=BodyLimits)


def build_http_app(service: EngineService, tokenizer: Tokenizer | RemoteTexts, options: HttpOptions) -> FastAPI:
    """The app that answers every route of the API; the page can be mounted on it at `/`.

    Call it before the service starts: `/metrics` counts from here on.
    """
    # The framework's documentation pages load scripts from elsewhere; the schema itself is served.
    app = FastAPI(title="tiny vLLM playground", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    metrics = Metrics(options.model_name)
    service.add_listener(metrics.observe)
    engine_routes = engine_router(service, metrics, are_controls_locked=options.are_controls_locked)
    openai_routes = openai_router(service, tokenizer, options.model_name)
    app.include_router(engine_routes)
    app.include_router(openai_routes)
    paths = _refuse_the_rest(app, [*app.routes, *engine_routes.routes, *openai_routes.routes])
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    # The last one added is the first a request passes.
    app.add_middleware(LimitBodies, limits=options.limits)
    if options.api_key:
        app.add_middleware(RequireApiKey, api_key=options.api_key)
    app.add_middleware(EchoRequestId)
    counts = HttpCounts()
    metrics.registry.register(counts)
    app.add_middleware(CountRequests, counts=counts, paths=paths)
    install_error_handlers(app)
    return app


def _refuse_the_rest(app: FastAPI, routes: Sequence[BaseRoute]) -> frozenset[str]:
    """405 for a known path with another method, 404 for unknown paths of ours. Returns the known paths.

    Without this the page, mounted at `/` later, would answer them in its own form.
    """
    methods_of: dict[str, frozenset[str]] = {}
    for route in routes:
        if isinstance(route, Route):
            methods_of[route.path] = methods_of.get(route.path, frozenset()) | frozenset(route.methods or ())
    for path, methods in methods_of.items():
        app.add_route(path, _wrong_method(methods), methods=sorted(_ALL_METHODS - methods), include_in_schema=False)
    for prefix in ("/v1", "/engine"):
        for path in (prefix, prefix + "/{rest:path}"):
            app.add_route(path, _unknown_path, methods=sorted(_ALL_METHODS), include_in_schema=False)
    return frozenset(methods_of)


def _wrong_method(allowed: frozenset[str]) -> Callable[[Request], Awaitable[Response]]:
    allow = ", ".join(sorted(allowed))

    async def refuse(request: Request) -> Response:
        raise ApiError(405, f"{request.method} is not possible here; use {allow}", headers={"Allow": allow})

    return refuse


async def _unknown_path(_: Request) -> Response:
    raise ApiError(404, "there is no such route; GET /openapi.json lists those there are", code="unknown_route")


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        components = schema.setdefault("components", {}).setdefault("schemas", {})
        components |= component_schemas(CompletionRequest, ChatRequest, Control)
        app.openapi_schema = schema
    return app.openapi_schema
