"""Reads the JSON body of a request into one of our models, and tells OpenAPI of it.

Owns the words in which a body of the wrong form is refused. Never repeats the values in it.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from engine.serving.connection import ClientGone
from engine.serving.errors import ApiError

M = TypeVar("M", bound=BaseModel)


async def read_json(request: Request, model: type[M]) -> M:
    """The body of `request` as `model`.

    Raises ApiError 400 for another content type (which also keeps other sites' pages from sending plain forms
    here), for what is no JSON, and for a field of the wrong kind.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise ApiError(400, "the body must be JSON: send the header 'Content-Type: application/json'")
    try:
        body = await request.body()
    except ClientDisconnect:
        raise ClientGone from None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error, model) from None


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body with `read_json`."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def component_schemas(*models: type[BaseModel]) -> dict[str, Any]:
    """What `body_schema` refers to, with all that it needs, for `components.schemas`."""
    schemas: dict[str, Any] = {}
    for model in models:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    return schemas


def _refusal(error: ValidationError, model: type[BaseModel]) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not valid JSON")
    if not first["loc"]:
        return ApiError(400, "the body must be a JSON object")
    place = _place(first["loc"])
    if first["type"] == "missing":
        return ApiError(400, f"{place} is missing", param=str(first["loc"][0]))
    if first["type"] == "extra_forbidden":
        known = ", ".join(model.model_fields)
        return ApiError(400, f"{place} is not known here; known are {known}", param=str(first["loc"][0]))
    kinds = {e["msg"].removeprefix("Input should be ") for e in error.errors(include_url=False, include_input=False)}
    return ApiError(400, f"{place} must be {' or '.join(sorted(kinds))}", param=str(first["loc"][0]))


def _place(location: tuple[int | str, ...]) -> str:
    """`messages[3].role`, say. What pydantic adds for the alternatives of a union is left out."""
    name = str(location[0])
    if len(location) > 1 and isinstance(location[1], int):
        name += f"[{location[1]}]"
        if len(location) > 2:
            name += f".{location[2]}"
    return name
