"""Helpers for the tests' programs: run one from outside, run one in a sandbox, and build a load for an environment of its
laboratory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from howfar.contract.messages import LoadJob, Workload
from howfar.lab import sandbox
from howfar.testbed import TrialEnvironment
from tests.lab.sandboxes import TIMEOUT_S


def answers(program: str, *arguments: str, cache: Path, **environment: str) -> list[dict[str, Any]]:
    """Run `tests.lab.PROGRAM` to its end; returns the JSON of each line that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.lab.{program}", *arguments],
        capture_output=True,
        text=True,
        timeout=4 * TIMEOUT_S,
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **environment},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def in_sandbox(main: Callable[[], None]) -> None:
    """Run a program's main function in a sandbox."""
    if not sandbox.inside():
        sys.exit(sandbox.run_inside())
    main()


def load_on(environment: TrialEnvironment, workload: Workload, **more: Any) -> LoadJob:
    """A load job over the staged path."""
    fields = {
        "target": environment.target,
        "user": environment.user,
        "password": environment.password,
        "database": environment.database,
    }
    return LoadJob(
        **{**fields, "workload": workload, "seed": 1, "observe": environment.observe, "warmup_ns": 0, **more}
    )
