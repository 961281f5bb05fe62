"""The routes that show and steer the engine: health, metrics, state, steps, trace, control.

Owns their form over HTTP. Never knows what a setting does; the service says what it takes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from engine.serving.access import refuse_cross_site
from engine.serving.errors import ApiError
from engine.serving.json_body import body_schema, read_json
from engine.telemetry.metrics import CONTENT_TYPE, Metrics
from engine.telemetry.ring import Steps
from engine.telemetry.trace import iter_jsonl, iter_perfetto

if TYPE_CHECKING:
    from engine.serving.service import EngineService

_STEPS_PER_PIECE = 64
_LINES_PER_PIECE = 256


@dataclass(frozen=True)
class _TraceForm:
    file_name: str
    media_type: str
    lines: Callable[[EngineService], Iterator[str]]


_TRACE_FORMS = {
    "jsonl": _TraceForm("trace.jsonl", "application/x-ndjson", iter_jsonl),
    "perfetto": _TraceForm("trace.perfetto.json", "application/json", iter_perfetto),
}


class Control(BaseModel):
    """Any subset of these; what needs an empty pool drains first and the state says so."""

    model_config = ConfigDict(strict=True, extra="forbid")

    policy: Literal["static", "decode_first", "prefill_first", "mixed", "continuous"] | None = None
    decode_selection: Literal["round_robin", "sticky"] | None = None
    kv_layout: Literal["paged", "contiguous"] | None = None
    prefix_caching: bool | None = None
    block_size: int | None = None
    num_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    paused: bool | None = None
    step: Annotated[int, Field(ge=1, le=1000)] | None = None
    step_delay_s: Annotated[float, Field(ge=0.0, le=10.0)] | None = None
    speed: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    """Of a recorded run."""
    seek: Annotated[int, Field(ge=0)] | None = None
    """A recorded run's step to go to."""


def engine_router(service: EngineService, metrics: Metrics, *, are_controls_locked: bool) -> APIRouter:
    """`/health`, `/metrics` and the routes under `/engine`."""
    router = APIRouter(tags=["Engine"])

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> Response:
        """Whether the engine answers."""
        reason = service.health()
        if reason is not None:
            raise ApiError(503, reason)
        return JSONResponse({"status": "ok"})

    @router.get("/metrics", response_class=Response)
    def show_metrics() -> Response:
        """Prometheus text, in vLLM's names."""
        return Response(metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    @router.get("/engine/state")
    async def state() -> dict[str, Any]:
        """The newest snapshot."""
        return service.state()

    @router.get("/engine/steps")
    async def steps(request: Request) -> Response:
        """Step records newer than `since`, oldest first; `base` when the reader has to start over.

        Query: `since` (a step number), `epoch` (as the answer before told it), `limit` (most records to send).
        """
        query = request.query_params
        newer = service.steps(
            _number(query.get("since"), "since"), query.get("epoch"), _number(query.get("limit"), "limit")
        )
        return StreamingResponse(_steps_json(newer), media_type="application/json")

    @router.get("/engine/trace")
    async def trace(request: Request) -> Response:
        """What the server still remembers of the run, as a file: `format=jsonl` (ours) or `perfetto` (Chrome's)."""
        wanted = request.query_params.get("format", "jsonl")
        if wanted not in _TRACE_FORMS:
            raise ApiError(400, f"format must be one of {', '.join(_TRACE_FORMS)}", param="format")
        form = _TRACE_FORMS[wanted]
        disposition = {"Content-Disposition": f'attachment; filename="{form.file_name}"'}
        return StreamingResponse(_in_pieces(form.lines(service)), headers=disposition, media_type=form.media_type)

    @router.post("/engine/control", openapi_extra=body_schema(Control))
    async def control(request: Request) -> dict[str, Any]:
        """Change settings, pause, step; the answer is the state."""
        refuse_cross_site(request)
        if are_controls_locked:
            raise ApiError(403, "the controls of this server are locked (--lock-controls)", code="controls_locked")
        changes = (await read_json(request, Control)).model_dump(exclude_none=True)
        return await asyncio.to_thread(service.control, changes)

    return router


def _in_pieces(lines: Iterator[str]) -> Iterator[str]:
    """Some lines at a time: each piece is a trip to a worker thread and back."""
    while piece := list(islice(lines, _LINES_PER_PIECE)):
        yield "".join(piece)


def _steps_json(steps: Steps) -> Iterator[str]:
    """In pieces, made outside the event loop: a few thousand records at once would stop every stream for a moment."""
    head = {
        "epoch": steps.epoch,
        "oldest": steps.oldest,
        "newest": steps.newest,
        "base": steps.base.to_dict() if steps.base is not None else None,
    }
    yield json.dumps(head)[:-1] + ', "steps": ['
    for start in range(0, len(steps.records), _STEPS_PER_PIECE):
        piece = steps.records[start : start + _STEPS_PER_PIECE]
        yield (", " if start else "") + ", ".join(json.dumps(record.to_dict()) for record in piece)
    yield "]}"


def _number(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ApiError(400, f"{name} must be a whole number, 0 or more", param=name)
    return int(text)
