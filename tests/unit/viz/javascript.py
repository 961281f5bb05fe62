"""Runs the page's pure browser code under node, where node is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

STATIC = Path(__file__).parents[3] / "viz" / "static"


def run_js(code: str, given: Any = None) -> Any:
    """The value that `code` (the body of an async function of `given`; modules as `load("name.js")`) returns."""
    node = shutil.which("node")
    if node is None:
        if os.environ.get("CI_REQUIRE_BROWSER") == "1":
            pytest.fail("node is required here, but it is not installed")
        pytest.skip("the browser code's tests need node, and it is not installed")
    script = f"""
        import {{ readFileSync }} from "node:fs";
        const load = (name) => import({json.dumps(STATIC.as_uri())} + "/" + name);
        const plain = (key, value) => value instanceof Map ? Object.fromEntries(value)
            : value instanceof Set || ArrayBuffer.isView(value) ? [...value] : value;
        const main = async (given) => {{ {code} }};
        const answer = await main(JSON.parse(readFileSync(0, "utf8")));
        process.stdout.write(JSON.stringify(answer ?? null, plain));
    """
    done = subprocess.run(
        [node, "--input-type=module", "-e", script],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
