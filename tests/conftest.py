"""What holds for every test: one computing thread, and nothing that leaves this machine."""

from __future__ import annotations

import os

# Two threads wait for each other inside every operator; when anything else wants a core they slow down tenfold.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
