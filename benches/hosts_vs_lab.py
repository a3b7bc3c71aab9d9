"""Does the laboratory predict results on real hosts? Runs `paths --quick` in both, on the same emulated link; compares the two.

    .venv/bin/python benches/hosts_vs_lab.py [--rtt 0.5ms] [--rate 1Gbit] [--out DIRECTORY] [-- MORE OPTIONS OF `howfar run`]

The hosts are namespaces of this machine with an sshd each, joined by `howfar hosts up` like any other hosts. Nothing else may run.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from howfar.units import parse_duration_ns, parse_rate_bps

ROOT = Path(__file__).parent.parent
HOWFAR = Path(sys.executable).with_name("howfar")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{HOWFAR.parent}:{os.environ['PATH']}:/usr/sbin"}


def run(command: list[str], directory: Path) -> None:
    if code := subprocess.run(command, cwd=directory, env=ENVIRONMENT).returncode:
        sys.exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rtt", default="0.5ms")
    parser.add_argument("--rate", default="1Gbit")
    parser.add_argument("--out", type=Path, default=None)
    options, extra_options = parser.parse_known_args()
    extra_options = [word for word in extra_options if word != "--"]
    directory = (options.out or Path(tempfile.mkdtemp(prefix="howfar-"))).absolute()
    directory.mkdir(exist_ok=True)
    plan = ["run", "paths", "--quick", *extra_options]
    run([str(HOWFAR), *plan, "--rtt", options.rtt, "--rate", options.rate, "--out", "lab.howfar"], directory)
    link = {"rtt_ns": parse_duration_ns(options.rtt), "rate_bps": parse_rate_bps(options.rate)}
    request = json.dumps({"directory": str(directory), "link": link})
    script = f"howfar {shlex.join(plan)} --on hosts.toml --place client=a,server=b --out hosts.howfar"
    run([sys.executable, "-m", "tests.lab.namespace_hosts", request, "bash", "-ec", script], directory)
    run([str(HOWFAR), "compare", "lab.howfar", "hosts.howfar"], directory)


if __name__ == "__main__":
    main()
