"""As many pages as asked, as far as the server can tell: sockets that ask for the steps as fast as a page does.

    python tests/flow/page_reader.py ws://127.0.0.1:7860/ui/feed 10

Says "ready" once all have caught up, reads on until its standard input ends, and then says how many bytes a second one
page was sent. Imports nothing of the project, so that it starts at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import ExitStack
from typing import Any

from websockets.sync.client import connect


def main() -> None:
    """Read until the input ends."""
    os.nice(19)  # it stands for people's own machines, which take no core from the server
    url, num_pages = sys.argv[1], int(sys.argv[2])
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with ExitStack() as stack:
        read([stack.enter_context(connect(url, max_size=None)) for _ in range(num_pages)], ended)


def read(sockets: list[Any], ended: threading.Event) -> None:
    """Ask and read in turns; see the module."""
    asks: list[dict[str, Any]] = [{} for _ in sockets]
    sent, started = 0, None
    while not ended.is_set():
        for socket, ask in zip(sockets, asks, strict=True):
            socket.send(json.dumps(ask))
        are_behind = False
        for i, socket in enumerate(sockets):
            text = str(socket.recv())
            answer = json.loads(text)
            if answer["steps"]:
                asks[i] = {"since": answer["steps"][-1]["s"], "epoch": answer["epoch"]}
            are_behind |= len(answer["steps"]) > 200
            sent += len(text) if i == 0 and started is not None else 0
        if started is None and not are_behind:
            started = time.monotonic()
            print("ready", flush=True)
    print(sent / (time.monotonic() - (started or 0.0)), flush=True)


if __name__ == "__main__":
    main()
