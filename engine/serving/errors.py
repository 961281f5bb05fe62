"""Every refusal and failure over HTTP, in OpenAI's form.

Owns the mapping from our exceptions to status codes and the shape `{"error": {message, type, param, code}}`.
Never repeats what a person typed: messages name fields and limits only, and the log gets an exception's kind and
where it was raised, not its words.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.scheduling.sampling_params import InvalidRequest
from engine.serving.connection import ClientGone
from engine.serving.service_errors import EngineDead, QueueFull

log = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}
_CODES = {401: "invalid_api_key", 413: "body_too_large", 429: "queue_full", 503: "engine_unavailable"}


class ApiError(Exception):
    """An answer other than success. `code` is OpenAI's machine-readable word where there is one."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.headers = status, message, param, headers
        self.code = code or _CODES.get(status)

    def body(self) -> dict[str, Any]:
        """The JSON that OpenAI's clients understand."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "internal_server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The whole response."""
        return JSONResponse(self.body(), self.status, headers=self.headers)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of `error`; anything unexpected is logged and becomes a 500 that gives nothing away."""
    match error:
        case ApiError():
            return error
        case InvalidRequest():
            return ApiError(400, str(error), param=error.param)
        case QueueFull():
            return ApiError(429, str(error), headers={"Retry-After": "1"})
        case EngineDead():
            return ApiError(503, str(error), headers={"Retry-After": "5"})
        case ClientGone():
            return ApiError(499, "the client closed the connection")
        case RequestValidationError():  # the framework's own reading of a query; it would answer 422
            first = error.errors()[0]
            name = str(first["loc"][-1])
            return ApiError(400, f"{name}: {first['msg']}", param=name)
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=dict(error.headers or {}))
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("a request failed inside the server: %s\n%s", type(error).__name__, frames)
    return ApiError(500, "the server failed on this request and logged where; other requests are not affected")


def install_error_handlers(app: FastAPI) -> None:
    """Give every error that leaves `app` OpenAI's form."""

    async def answer(_: Request, error: Exception) -> JSONResponse:
        return as_api_error(error).response()

    for kind in (ApiError, InvalidRequest, QueueFull, EngineDead, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)
    app.add_middleware(_CatchAll)


class _CatchAll:
    """Answers what no handler knows; without it the web framework would log the exception's words."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def watch(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception as error:
            known = as_api_error(error)
            if not has_started:
                await known.response()(scope, receive, send)
