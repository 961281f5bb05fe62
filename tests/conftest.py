"""What holds for every test: one computing thread, nothing that leaves this machine, the same examples every time."""

from __future__ import annotations

import os

# Two threads wait for each other inside every operator; when anything else wants a core they slow down tenfold.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

from hypothesis import settings

# The same examples in every run: a change is judged, not the day's luck. `--hypothesis-seed` looks elsewhere.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
