"""`python -m engine.bench NAME …`: finds the benchmark and hands it the rest of the command line."""

from __future__ import annotations

import sys
from importlib import import_module

BENCHES = {
    "simulate": "scheduling alone: static against continuous on the simulated runner",
    "modes": "the five inference modes, prefill only, decode only",
    "serving": "static against continuous on the real model",
    "speed": "steady decode and prefill through the whole engine",
    "profile": "where the time of one decode step goes",
    "growth": "what a step costs as requests, pool, context and queue grow",
    "serve": "a running server over HTTP",
    "gpu-check": "everything that needs a card, in one go",
}


def main(argv: list[str]) -> int:
    """Exit code 0, or 2 with the list of names when there is no such benchmark."""
    if not argv or argv[0] not in BENCHES:
        known = "\n".join(f"  {name:10} {what}" for name, what in BENCHES.items())
        print(f"usage: python -m engine.bench NAME [options]\n\n{known}", file=sys.stderr)
        return 0 if argv and argv[0] in ("-h", "--help") else 2
    module = import_module(f"engine.bench.{argv[0].replace('-', '_')}")
    return int(module.main(argv[1:]) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
