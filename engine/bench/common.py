"""What every benchmark says about itself: machine, versions, command; and how it prints and saves.

Owns the form of a result. Never measures anything.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def parser(name: str, what: str, needs_model: bool = True) -> argparse.ArgumentParser:
    """An argument parser with the options that all benchmarks share."""
    result = argparse.ArgumentParser(prog=f"python -m engine.bench {name}", description=what)
    if needs_model:
        result.add_argument("--model", default="auto", help="Hub id, Hugging Face folder or .gguf file (default: auto)")
        result.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
        result.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
        result.add_argument("--quantization", default="auto", choices=("auto", "none", "int4"))
    result.add_argument("--seed", type=int, default=0)
    result.add_argument("--json", type=Path, metavar="FILE", help="also write the result as JSON")
    return result


def about(name: str, argv: Sequence[str]) -> dict[str, Any]:
    """Machine, versions, date and command of this run."""
    return {
        "benchmark": name,
        "command": shlex.join(["python", "-m", "engine.bench", name, *_without_paths(argv)]),
        "date": date.today().isoformat(),
        "machine": {
            "processor": processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {"python": platform.python_version()} | _versions("torch", "transformers", "gradio"),
    }


def finish(result: Mapping[str, Any], table: str, json_file: Path | None) -> None:
    """Print the head and the table, and write the JSON if a file was named."""
    machine = result["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    print(result["command"])
    print(f"{machine['processor']}, {machine['cores']} cores, {machine['system']}; {versions}; {result['date']}")
    print("\n" + table)
    if json_file is not None:
        write(result, json_file)


def write(result: Mapping[str, Any], json_file: Path) -> None:
    """Write a result as JSON."""
    json_file.write_text(json.dumps(result, indent=1) + "\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; numbers right-aligned, floats with three significant digits or more."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(column), 3, *(len(row[i]) for row in cells)) for i, column in enumerate(columns)]
    head = "| " + " | ".join(c.ljust(w) for c, w in zip(columns, widths, strict=True)) + " |"
    rule = "| " + " | ".join("-" * w for w in widths) + " |"
    lines = ["| " + " | ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    return "\n".join([head, rule, *lines])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most of several rounds."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _without_paths(argv: Sequence[str]) -> list[str]:
    """The command as others would type it: of a path only its last part."""
    return [Path(word).name if os.sep in word and Path(word).is_absolute() else word for word in argv]


def warn(words: str) -> None:
    """Say something beside the result."""
    print(words, file=sys.stderr)
