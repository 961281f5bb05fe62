"""Reads as many answers as asked over HTTP, as event streams, spending as little on it as a reader can.

    python tests/flow/stream_reader.py 127.0.0.1 7860 20 400

Asks for answers of that many tokens, says "ready" once each stream has begun, reads on until its standard input ends,
and then says how many bytes came and how many seconds of a processor the reading took.
"""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import sys
import threading


def main() -> None:
    """Read until the input ends."""
    os.nice(19)  # it stands for people's own machines, which take no core from the server
    host, port, num_streams, num_tokens = sys.argv[1], *map(int, sys.argv[2:5])
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    sockets = []
    for number in range(num_streams):
        prompt = [100 + number, *range(101, 164)]
        body = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        sockets.append(socket.create_connection((host, port)))
        sockets[-1].sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    begun: set[socket.socket] = set()
    num_bytes = 0
    while not ended.is_set():
        for one in select.select(sockets, [], [], 0.1)[0]:
            piece = one.recv(65536)
            num_bytes += len(piece)
            if not piece:
                sockets.remove(one)
            if b"data: {" in piece and one not in begun:
                begun.add(one)
                if len(begun) == num_streams:
                    print("ready", flush=True)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(num_bytes, usage.ru_utime + usage.ru_stime, flush=True)


if __name__ == "__main__":
    main()
