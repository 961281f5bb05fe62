"""The live panels in the page: the element that holds them, and the routes their browser code needs.

Owns /ui/static, /ui/plotly.min.js, /ui/words.json and the mount. Never knows what else is on the page. The browser
code draws by itself from the step feed, so no Python runs and nothing is re-rendered while a panel updates.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fastapi import FastAPI, Response

from viz import words
from viz.feed import Feed, StepSource
from viz.feed_routes import register_feed

if TYPE_CHECKING:
    import gradio as gr

STATIC = Path(__file__).parent / "static"
PLOTLY = Path(str(files("plotly") / "package_data" / "plotly.min.js"))
_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".json": "application/json"}
Kind = Literal["live", "compare"]


def register_routes(app: FastAPI, service: StepSource) -> Feed:
    """Add all routes under /ui/ to `app`; returns the feed behind them."""
    feed = Feed(service)
    register_feed(app, feed)

    @app.get("/ui/static/{version}/{name:path}", include_in_schema=False)
    def static(version: str, name: str) -> Response:
        path = (STATIC / name).resolve()
        if path.suffix not in _MEDIA_TYPES or not path.is_relative_to(STATIC) or not path.is_file():
            return Response("no such file", status_code=404, media_type="text/plain")
        return _file(path.read_bytes(), _MEDIA_TYPES[path.suffix], keep=version == static_version())

    @app.get("/ui/plotly.min.js", include_in_schema=False)
    def plotly() -> Response:
        return _file(PLOTLY.read_bytes(), "text/javascript", keep=True)

    @app.get("/ui/words.json", include_in_schema=False)
    def words_json() -> Response:
        return _file(json.dumps(words.as_json()).encode(), "application/json", keep=False)

    return feed


def panel_html(kind: Kind = "live", **options: Any) -> gr.HTML:
    """The element in which the panels draw themselves.

    `live` follows this server's engine. `compare` waits for a value `{"runs": [{"id", "label"}, …]}` with ids of
    `Feed.add_run` and draws them side by side. `options` go to `gr.HTML`.
    """
    import gradio as gr

    return gr.HTML(
        value={"runs": []} if kind == "compare" else {},
        html_template=f'<div class="engine-panels" data-kind="{kind}"></div>',
        js_on_load=mount_script(kind),
        apply_default_css=False,
        **({"elem_id": f"panels-{kind}"} | options),
    )


def mount_script(kind: Kind) -> str:
    """The function body that loads the browser code and hands it the element."""
    url = f"ui/static/{static_version()}/main.js"
    bind = "watch('value', () => panels.setValue(props.value)); panels.setValue(props.value);"
    return (
        f"import(new URL('{url}', document.baseURI).href)"
        f".then((m) => m.mount(element.querySelector('.engine-panels'), {{kind: '{kind}'}}))"
        f".then((panels) => {{ {bind if kind == 'compare' else ''} }});"
    )


@cache
def static_version() -> str:
    """A name for the present contents of the browser code, so that a browser may keep it for ever."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _file(content: bytes, media_type: str, keep: bool) -> Response:
    cache_control = "public, max-age=31536000, immutable" if keep else "no-cache"
    return Response(content, media_type=media_type, headers={"Cache-Control": cache_control})
