"""Gradio's own Python client against the mounted page."""

from __future__ import annotations

from pathlib import Path

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

from engine.serving.http_app import HttpOptions, build_http_app
from tests.http_server import serving, wait_until
from tests.tiny_engine import tiny_service
from tests.tiny_models import chain
from viz import page

SCRIPT = "one tw☃🎈,x"


def test_it_asks_streams_and_cancels(tmp_path: Path) -> None:
    service = tiny_service(chain(tmp_path / "chain", SCRIPT))
    app = build_http_app(service, service.tokenizer, HttpOptions("tiny"))  # type: ignore[arg-type]
    page.mount(app, page.build(service, service.tokenizer))
    service.start()
    try:
        with serving(app) as url:
            client = Client(url, verbose=False)
            assert list(client.view_api(return_format="dict")["named_endpoints"]) == ["/answer"]
            told = SCRIPT.partition(" ")[2]  # the chat template ends with a space
            assert client.predict("?", 50, 0.0, api_name="/answer") == told
            parts = list(client.submit("?", 50, 0.0, api_name="/answer"))
            assert parts[-1] == told
            with pytest.raises(AppError, match="max_tokens"):
                client.predict("?", 0, 0.0, api_name="/answer")

            service.control({"step_delay_s": 0.2})
            job = client.submit("?", 50, 0.0, api_name="/answer")
            wait_until(lambda: bool(service.state()["pending_decode"]))
            job.cancel()
            wait_until(lambda: not service.state()["pending_decode"])
    finally:
        service.stop()
