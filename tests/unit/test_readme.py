"""What the README promises to people and to Hugging Face Spaces is there."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
REQUIREMENTS = {
    requirement.name: requirement
    for line in (ROOT / "requirements.txt").read_text().splitlines()
    if line and not line.startswith("#")
    for requirement in [Requirement(line)]
}


def front_matter() -> dict[str, object]:
    head = re.match(r"---\n(.*?)\n---\n", README, re.DOTALL)
    assert head, "README.md has no front matter"
    return yaml.safe_load(head[1])


def test_the_space_runs_the_gradio_that_is_required_and_installed():
    matter = front_matter()
    assert matter["sdk"] == "gradio"
    assert str(REQUIREMENTS["gradio"].specifier) == f"=={matter['sdk_version']}"
    assert version("gradio") == matter["sdk_version"]


def test_the_space_names_a_file_that_is_there_and_values_that_the_hub_knows():
    matter = front_matter()
    assert (ROOT / str(matter["app_file"])).is_file()
    colours = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
    assert {matter["colorFrom"], matter["colorTo"]} <= colours
    assert len(str(matter["short_description"])) <= 60
    assert re.fullmatch(r"\d+(m|h)", str(matter["startup_duration_timeout"]))
    assert str(matter["suggested_hardware"]).startswith(("t4-", "l4", "a10g-", "cpu-"))


def test_the_space_preloads_no_gated_model_and_names_those_that_auto_may_run():
    from engine.model.source import CPU_CHOICES, CUDA_CHOICES

    matter = front_matter()
    assert set(CUDA_CHOICES) | set(CPU_CHOICES) == set(matter["models"])  # type: ignore[call-overload]
    assert "preload_from_hub" not in matter


@pytest.mark.parametrize("command", ["python app.py", "python -m pytest"])
def test_each_job_is_one_command(command: str):
    assert f"pip install -r requirements.txt && {command}" in README


def test_every_link_into_the_repository_leads_somewhere():
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_option_and_every_benchmark_it_names_exists():
    from engine.bench.__main__ import BENCHES

    cli = (ROOT / "engine" / "cli.py").read_text()
    options = set(re.findall(r"`(--[a-z-]+)", README))
    assert options
    assert [option for option in sorted(options) if option not in cli] == []
    assert set(re.findall(r"python -m engine\.bench (\S+)", README)) <= set(BENCHES)


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_a_newcomer_is_told_of_the_clone_the_download_and_the_two_cores_where_they_start():
    start = section("Start")
    clone = start.index("in a clone of this repository")
    assert "`git clone`" in start
    assert clone < start.index("pip install") < start.index("pip fetches PyTorch") < start.index("http://127.0.0.1")
    assert "three minutes" in start
    assert re.search(r"^> \*\*.*two cores.*`OMP_NUM_THREADS=1 python app.py`", start, re.MULTILINE)


def test_what_to_try_first_names_every_tab_and_buttons_that_are_there():
    from viz.compare_presets import QUESTIONS
    from viz.lessons import LESSONS
    from viz.presets import PRESETS

    tries = section("Try this first")
    page = (ROOT / "viz" / "page.py").read_text()
    tabs = set(re.findall(r'^            with gr.Tab\("(\w+)"', page, re.MULTILINE))
    assert tabs == {"Live", "Compare", "Lessons", "Replay"}
    assert [tab for tab in sorted(tabs) if tab not in tries] == []
    titles = {question.title for question in QUESTIONS} | {preset.title for preset in PRESETS}
    titles |= set(
        re.findall(r'Button\(\s*"([^"]+)"', "".join(path.read_text() for path in (ROOT / "viz").rglob("*.py")))
    )
    pressed = re.findall(r"(?:[Pp]ress|[Ss]end|Choose) \**([A-Z][^*]*)\*", tries)
    assert len(pressed) >= 5
    assert [title for title in pressed if title not in titles] == []
    assert f"{('ten', 'eleven', 'twelve')[len(LESSONS) - 10]}, one idea each" in tries


def test_prefix_sharing_is_on_from_the_start_as_it_says():
    from engine.settings import EngineSettings

    assert EngineSettings().prefix_caching
    tries = section("Try this first")
    assert "sharing is on from the start" in tries
    assert "sharing on" not in tries.lower()
