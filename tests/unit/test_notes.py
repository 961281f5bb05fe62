"""What the notes say is there is there: paths, names, commands, options, links."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from engine import cli
from engine.telemetry.metric_names import COUNTERS, GAUGES, HISTOGRAMS
from engine.telemetry.record import WaitReason

ROOT = Path(__file__).resolve().parents[2]
NOTES = {path.name: path.read_text() for path in sorted((ROOT / "notes").glob("*.md"))}
IDEAS = [
    "rope.md",
    "parity.md",
    "kv-cache.md",
    "static-batching.md",
    "continuous-batching.md",
    "paged-kv.md",
    "paged-attention.md",
    "prefix-sharing.md",
    "preemption.md",
    "scheduling-policies.md",
    "metrics.md",
    "threads-and-records.md",
    "time-travel.md",
    "workloads.md",
]
OTHER_PROGRAMS = {"schemathesis", "guidellm", "curl", "pip", "apt"}
GUIDES = ["add-a-policy.md", "add-a-model.md", "walk.md", "deploy.md"]


def code_words(text: str) -> list[str]:
    """What stands in `back ticks`, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def commands(text: str) -> list[list[str]]:
    """Every `python …` in the note, in blocks and in lines, as words."""
    found = re.findall(r"(?:^ {4}|`|^|&& )(python (?:-m [\w.]+|app\.py)[^`\n]*)", text, flags=re.MULTILINE)
    stand_ins = {"$(openssl rand -hex 16)": "secret", " URL": " http://127.0.0.1:8000"}
    for placeholder, value in stand_ins.items():
        found = [line.replace(placeholder, value) for line in found]
    return [shlex.split(line, comments=True) for line in found]


# -- every note --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*IDEAS, *GUIDES])
def test_it_is_there_and_asks_a_question(name: str):
    assert "## Check yourself" in NOTES[name]
    assert NOTES[name].startswith("# ")


@pytest.mark.parametrize("name", IDEAS)
def test_an_idea_has_its_parts(name: str):
    for heading in ("## The problem", "## What we chose, and what we did not", "## Read"):
        assert heading in NOTES[name] or (name == "metrics.md" and heading == "## The problem")


def test_the_index_names_every_note():
    for name in [*IDEAS, *GUIDES]:
        assert f"({name})" in NOTES["README.md"]


@pytest.mark.parametrize("name", sorted(NOTES))
def test_links_and_pictures_lead_somewhere(name: str):
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", NOTES[name]):
        assert (ROOT / "notes" / target).exists(), target


@pytest.mark.parametrize("name", sorted(NOTES))
def test_paths_exist(name: str):
    pattern = re.compile(r"(?<![\w/.])(?:engine|viz|tests|notes|assets)/[\w./*-]*|app\.py|README\.md|requirements\.txt")
    for word in code_words(NOTES[name]):
        for path in pattern.findall(word.split("::")[0]):
            assert any(ROOT.glob(path.rstrip("."))), f"{name} speaks of {path}"


@cache
def defined_names() -> frozenset[str]:
    """Every class, function, method, constant, field and parameter in the project's Python and JavaScript."""
    names: set[str] = set()
    for path in [*ROOT.glob("engine/**/*.py"), *ROOT.glob("viz/**/*.py"), *ROOT.glob("tests/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                names.add(node.value)
    return frozenset(names)


@pytest.mark.parametrize("name", [*IDEAS, *GUIDES])
def test_names_exist(name: str):
    """Every `word_with_underscores`, `CamelCase` and `Class.method` is defined somewhere."""
    exempt = {"lm_head.weight", "HF_TOKEN", "is_prefill", "index_select"}  # others' names, and one not chosen
    for word in code_words(NOTES[name]):
        if (
            re.fullmatch(r"[A-Za-z_][\w.]*(\(.*\))?", word)
            and word not in exempt
            and not word.endswith((".md", ".py", ".json", ".txt"))
        ):
            for part in word.split("(")[0].split("."):
                if "_" in part.strip("_") or re.fullmatch(r"(?:[A-Z]+[a-z]+){2,}[A-Z]*", part):
                    assert part in defined_names(), f"{name} speaks of {word}"


@pytest.mark.parametrize("name", sorted(NOTES))
def test_commands_name_modules_and_options_that_exist(name: str):
    for words in commands(NOTES[name]):
        if words[1] == "app.py":
            options = cli.parse([word for word in words[2:] if word != "--help"], {})
            assert isinstance(options, cli.Options)
            continue
        module = words[2]
        if module == "pytest":
            continue
        path = ROOT / Path(*module.split("."))
        source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__main__.py"
        assert source.exists(), f"{name}: {' '.join(words)}"
        if module == "engine.bench" and len(words) > 3 and words[3].islower():
            source = ROOT / "engine" / "bench" / f"{words[3].replace('-', '_')}.py"
            assert source.exists(), f"{name}: {' '.join(words)}"
        texts = source.read_text() + (ROOT / "engine" / "bench" / "common.py").read_text()
        for word in words:
            if word.startswith("--"):
                assert f'"{word}"' in texts, f"{name}: {module} knows no {word}"


@pytest.mark.parametrize("name", sorted(NOTES))
def test_options_in_the_text_exist(name: str):
    known = {f"--{field.replace('_', '-')}" for field in cli.Options.__dataclass_fields__}
    known |= {"--no-prefix-caching", "--help", "--check", "--format", "--out", "--no-deps"}
    sources = "".join(path.read_text() for path in [*ROOT.glob("engine/bench/*.py"), *ROOT.glob("tests/**/*.py")])
    own = [word for word in code_words(NOTES[name]) if word.split()[0] not in OTHER_PROGRAMS]
    for word in own:
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", word):
            assert option in known or f'"{option}"' in sources, f"{name} speaks of {option}"


def test_reasons_and_metrics_in_the_text_exist():
    metrics = {name.split(":")[1] for name in (*HISTOGRAMS, *COUNTERS, *GAUGES)}
    for text in NOTES.values():
        for metric in re.findall(r"`(?:tiny_)?vllm:(\w+?)(?:_total)?[`{]", text):
            assert metric in metrics or f"{metric}_total" in metrics, metric
    for name in ("no_run", "sibling", "no_slot"):
        assert name in set(WaitReason)


def test_the_walk_has_the_steps_it_speaks_of():
    numbers = [int(n) for n in re.findall(r"^(\d+)\. \*\*", NOTES["walk.md"], flags=re.MULTILINE)]
    assert numbers == list(range(1, 15))
    assert "the fourteen steps" in NOTES["walk.md"]
    assert "Steps 5 to 14" in NOTES["walk.md"]
