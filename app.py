"""One process, one port: the engine, the HTTP routes and the page. Parse, build, wire, serve; nothing else."""

from __future__ import annotations

import logging
import sys
from functools import partial

from engine import cli
from engine.serving.http_server import Loaded, listen, serve


def load(options: cli.Options) -> Loaded:
    """Everything that takes a while: imports, weights, the page."""
    from engine.launch import launch
    from engine.serving.http_app import HttpOptions, build_http_app
    from viz import page

    engine = launch(options)
    app = build_http_app(
        engine.service,
        engine.tokenizer,
        HttpOptions(engine.model_name, options.api_key, options.lock_controls),
    )
    # An attached server is not ours to steer.
    is_locked = options.lock_controls or options.attach is not None
    page_options = page.PageOptions(lock_controls=is_locked, sampling=engine.sampling)
    page.mount(app, page.build(engine.service, engine.tokenizer, page_options))
    engine.service.start()
    return Loaded(app, engine.close, engine.summary)


def main() -> int:
    """Exit code 0 after an orderly end, 2 when what was asked for cannot be served."""
    options = cli.parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for every request we send
    try:
        serve(listen(options.host, options.port), partial(load, options))
    except cli.CannotStart as error:
        print(f"app.py: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
