"""Helpers for the scenario programs of these tests: start one, run one in a sandbox, make a load job for its laboratory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from howfar.contract.messages import LoadJob, Workload
from howfar.lab import sandbox
from howfar.testbed import TrialEnvironment
from tests.lab.sandboxes import TIMEOUT_S, cache_variable, in_sandbox


def run_scenario(
    program: str, *arguments: str, cache: Path, sandboxed: bool = True, env: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Run `tests.lab.PROGRAM` until it ends; returns the JSON of each line that it prints."""
    command = [sys.executable, "-m", f"tests.lab.{program}", *arguments]
    result = subprocess.run(
        in_sandbox(*command) if sandboxed else command,
        capture_output=True,
        text=True,
        timeout=4 * TIMEOUT_S,
        env={**os.environ, **cache_variable(cache), **env},
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def run_in_sandbox(main: Callable[[], None]) -> None:
    """Run a program's main function in a sandbox, which is entered by starting the program again."""
    if not sandbox.inside():
        sys.exit(sandbox.run_inside())
    main()


def make_load_job(environment: TrialEnvironment, workload: Workload, **more: Any) -> LoadJob:
    """A load job over the environment's path."""
    login = {name: getattr(environment, name) for name in ("target", "user", "password", "database")}
    return LoadJob(**{**login, "workload": workload, "seed": 1, "observe": environment.observe, "warmup_ns": 0, **more})
