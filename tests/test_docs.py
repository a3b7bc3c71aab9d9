"""The documents are correct: their links have targets, and each command after a `$` in a console block runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from howfar.store.records import StopReason
from howfar.store.run_file import create
from tests.unit.synthetic_run import synthetic_run

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
TIMEOUT_S = 170

ELSEWHERE: dict[str, str] = {
    "./setup": "every run of ./test begins with it",
    "./test": "that is this",
    "./run": "minutes; tests/lab runs the same experiment shorter",
    "howfar hosts": "hosts; tests/lab/test_hosts.py runs the same among namespaces",
    "howfar run paths --on": "hosts; tests/lab/test_hosts.py runs the same among namespaces",
    "howfar bench": "minutes; tests/lab/test_calibrate.py runs the same shorter",
}
"""Commands by their first words: why a unit test does not run them, and what does."""


@dataclass(frozen=True)
class Example:
    document: str
    line: int
    commands: tuple[str, ...]


def examples() -> list[Example]:
    """The console blocks that hold commands, in the order of the documents."""
    found = []
    for path in DOCUMENTS:
        lines = path.read_text(encoding="utf-8").splitlines()
        start: int | None = None
        for number, line in enumerate(lines, 1):
            if line.strip() == "```console":
                start = number
            elif line.strip() == "```" and start is not None:
                commands = tuple(
                    text.strip()[2:] for text in lines[start : number - 1] if text.strip().startswith("$ ")
                )
                found.append(Example(str(path.relative_to(ROOT)), start, commands))
                start = None
    return found


def elsewhere(command: str) -> str | None:
    """The reason why this command is not run here."""
    return next((why for prefix, why in ELSEWHERE.items() if (command + " ").startswith(prefix + " ")), None)


def run_files(folder: Path) -> None:
    """Create the finished runs that the examples refer to by these names."""
    for number, name in enumerate(("full.howfar", "far.howfar")):
        run = synthetic_run(blocks=8, samples=10, seed=number)
        with create(folder / name, run.info) as store:
            for trial in run.trials:
                store.append_trial(trial)
            store.set_stop(StopReason.WIDTH)


def _parameters() -> list[Any]:
    """All examples; those that build a laboratory carry the mark `lab`."""
    return [
        pytest.param(
            example,
            id=f"{example.document}:{example.line}",
            marks=[pytest.mark.lab] if any(c.startswith("howfar lab") for c in example.commands) else [],
        )
        for example in examples()
    ]


@pytest.mark.parametrize("example", _parameters())
def test_console_example_runs(example: Example, tmp_path: Path) -> None:
    assert example.commands, "a console block without a command; mark output as text"
    run_files(tmp_path)
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "HOME": str(tmp_path), "COLUMNS": "100"}
    for command in example.commands:
        if elsewhere(command) is not None:
            continue
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"


def test_every_exception_is_still_one() -> None:
    commands = [command for example in examples() for command in example.commands]
    stale = {
        prefix for prefix in ELSEWHERE if not any((command + " ").startswith(prefix + " ") for command in commands)
    }
    assert stale == set(), "no document shows it any more"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings: their words in lower case, joined by hyphens."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_document_names_exist(path: Path) -> None:
    named = re.findall(r"`((?:python|crates|tests|docs|schema|plans|published|benches)/[\w./-]+)`", path.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_documents_that_messages_name_are_published() -> None:
    """`./release` puts docs/ and the files of schema/ into wheels, packages and images."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "python" / "howfar").rglob("*.py")]
    names = set(re.findall(r"\b(?:docs|schema)/[\w./-]+\.\w+", "\n".join(sources)))
    assert "docs/addresses.md" in names
    assert sorted(name for name in names if not (ROOT / name).is_file()) == []
    published = (ROOT / "release").read_text(encoding="utf-8")
    assert "cp -R docs " in published and "cp schema/*.json " in published


def test_the_examples_of_clusters_are_what_their_tools_read() -> None:
    yaml = pytest.importorskip("yaml", reason="comes with Ray")
    util = pytest.importorskip("ray.autoscaler._private.util")
    launched = yaml.safe_load((ROOT / "docs/examples/ray-up.yaml").read_text())
    util.validate_config(util.prepare_config(launched))
    pods = yaml.safe_load((ROOT / "docs/examples/kuberay.yaml").read_text())
    groups = pods["spec"]["workerGroupSpecs"]
    given = [json.loads(json.loads(group["rayStartParams"]["resources"])) for group in groups]
    launchable = launched["available_node_types"].values()
    roles = [{"role:client": 1}, {"role:server": 1}]
    assert given == roles == [kind["resources"] for kind in launchable if kind["resources"].pop("CPU") == 8]
