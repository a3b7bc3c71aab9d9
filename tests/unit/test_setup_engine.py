"""How `./setup` compiles the engine, beside its other steps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60


def write_script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def run_functions(folder: Path, names: list[str], script: str) -> str:
    """Output of a script that follows these functions of `./setup`, started in a folder."""
    take = "".join(f"/^{name}() *{{/,/^}}/p;" for name in names)
    whole = f"set -eu; eval \"$(sed -n '{take}' {ROOT}/setup)\"; {script}"
    done = subprocess.run(["sh", "-c", whole], cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.stdout + done.stderr


def is_running(status: Path) -> bool:
    try:
        return "\nState:\tZ" not in status.read_text()
    except OSError:
        return False


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is missing")
def test_maturin_finds_the_engine_compiled(tmp_path: Path) -> None:
    """With other arguments than maturin's, cargo would compile the engine twice."""
    log = tmp_path / "log"
    write_script(tmp_path / "cargo", f'[ "$1" = rustc ] || exec {shutil.which("cargo")} "$@"\necho "$*" >{log}\nexit 1')
    maturin = Path(sys.executable).parent / "maturin"
    subprocess.run(
        [maturin, "pep517", "build-wheel", "-i", sys.executable, "--compatibility", "off", "--editable"],
        cwd=ROOT, env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, capture_output=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    theirs = log.read_text().replace(f"{ROOT}/", "").replace("--message-format json-render-diagnostics ", "").split()

    (tmp_path / ".stamps").mkdir()
    run_functions(
        tmp_path, ["start_compiling"], 'background=; say() { :; }; setsid() { echo "$@"; }; start_compiling; wait'
    )
    ours = (tmp_path / ".stamps/engine.log").read_text().replace("--quiet ", "").split()
    assert ours == ["cargo", *theirs]


def test_an_end_by_a_signal_ends_the_compiler_too(tmp_path: Path) -> None:
    (tmp_path / ".stamps").mkdir()
    compiler = write_script(tmp_path / "cargo", f"sleep {TIMEOUT_S} & echo $! >{tmp_path}/child; wait")
    run_functions(
        tmp_path,
        ["stop_background", "start_compiling"],
        f"background=; say() {{ :; }}; PATH={compiler.parent}:$PATH; trap stop_background EXIT; trap 'exit 143' TERM; "
        "start_compiling; until [ -s child ]; do sleep 0.05; done; kill -s TERM $$",
    )
    child = Path(f"/proc/{int((tmp_path / 'child').read_text())}/status")
    deadline = time.monotonic() + TIMEOUT_S / 2
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)
