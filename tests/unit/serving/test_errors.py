"""Errors over HTTP that come from no route of ours: they have OpenAI's form too, and repeat nothing."""

from __future__ import annotations

import asyncio

import httpx
from fastapi import FastAPI

from engine.serving.errors import install_error_handlers

SECRET = "my-private-words"


def get(app: FastAPI, url: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            return await client.get(url)

    return asyncio.run(ask())


def test_a_query_that_the_framework_refuses_is_a_400_that_names_the_field() -> None:
    app = FastAPI()
    install_error_handlers(app)

    @app.get("/steps")
    def steps(since: int) -> int:
        return since

    assert get(app, "/steps?since=3").json() == 3
    for url in (f"/steps?since={SECRET}", "/steps"):
        response = get(app, url)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == "since"
        assert SECRET not in response.text
