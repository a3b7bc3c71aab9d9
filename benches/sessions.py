"""Do sessions on one machine agree? Several quick runs of `paths` with a different seed each, and what their intervals contain.

    .venv/bin/python benches/sessions.py [--sessions 10] [--budget 106s] [--out DIRECTORY] [-- MORE OPTIONS OF `howfar run`]

Prints the ratio of `remote` to the socket and the known effect of each session, their scatter, and the link's own figures: void
trials, lateness and the emulator's CPU time a packet. Files in DIRECTORY from an earlier call are reused. Nothing else may run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from howfar.stats.estimate import Estimate
from howfar.stats.intervals import estimate_text
from howfar.store.records import TrialStatus
from howfar.store.run_file import read_run

HOWFAR = Path(sys.executable).with_name("howfar")
ARM = "remote"


def report_of(file: Path, plan: str, seed: int, more: list[str], *, quietly: bool = False) -> dict[str, Any]:
    """The report of one quick run, which is made unless its file exists. Exits if the run fails. `quietly`: without what it prints."""
    if not file.exists():
        command = [str(HOWFAR), "run", plan, "--quick", "--seed", str(seed), "--out", str(file), *more]
        if code := subprocess.run(command, stdout=subprocess.DEVNULL if quietly else None).returncode:
            sys.exit(code)
    shown = subprocess.run([HOWFAR, "report", file, "--json"], capture_output=True, check=True)
    report: dict[str, Any] = json.loads(shown.stdout)
    return report


def link_figures(file: Path) -> list[tuple[float, float]]:
    """For each trial of the arm: lateness p99 of the later direction, and CPU time per packet, both in µs."""
    found = []
    for trial in read_run(file).trials:
        counters = None if trial.receipt.link is None else trial.receipt.link.counters
        if trial.arm != ARM or trial.status is not TrialStatus.OK or counters is None:
            continue
        directions = (counters.to_server, counters.to_client)
        packets = sum(direction.packets for direction in directions)
        late_ns = max(direction.lateness_p99_ns for direction in directions)
        found.append((late_ns / 1e3, sum(direction.cpu_ns for direction in directions) / packets / 1e3))
    return found


def has_interval(estimate: dict[str, Any]) -> bool:
    return estimate["low"] is not None


def with_limits(estimate: dict[str, Any]) -> str:
    return estimate_text(Estimate(**estimate), "{:.3g}".format, "(no interval)")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--budget", default="106s")
    parser.add_argument("--out", type=Path, default=None)
    options, more = parser.parse_known_args()
    folder = (options.out or Path(tempfile.mkdtemp(prefix="howfar-"))).absolute()
    folder.mkdir(exist_ok=True)
    ratios, effects, void, links = [], [], [], []
    for number in range(1, options.sessions + 1):
        file = folder / f"{number}.howfar"
        run_options = ["--path", f"socket,{ARM}", "--time-budget", options.budget]
        report = report_of(file, "paths", number, [*run_options, *(word for word in more if word != "--")])
        ratio = next((cell["ratio"] for cell in report["cells"] if cell["arm"] == ARM), None)
        if ratio is not None:
            ratios.append(ratio)
        effects += [control for control in report["controls"] if control["put_in"] != 1]
        void.append(report["void_rate"])
        links += link_figures(file)
        shown = "without a figure" if ratio is None else f"{with_limits(ratio)} of the socket"
        print(f"{number}: {ARM} {shown}, void {void[-1]:.1%}, idle {report['idle']}")
    if not ratios:
        sys.exit(f"no session has a figure of {ARM}: run again on a quieter machine")
    values = [ratio["value"] for ratio in ratios]
    mean = statistics.fmean(values)
    scatter = statistics.stdev(values) / mean if len(values) > 1 else float("nan")
    limited = list(filter(has_interval, ratios))
    held = sum(each["low"] <= mean <= each["high"] for each in limited)
    print(f"ratio: mean {mean:.3f}, sd {scatter:.1%}; {held} of {len(limited)} intervals hold the mean")
    for effect in effects:
        print(f"known effect {effect['put_in']:g} {effect['unit']}: {with_limits(effect['found'])}")
    judged = [effect for effect in effects if has_interval(effect["found"])]
    recovered = sum(bool(effect["recovered"]) for effect in judged)
    seen = sum(effect["found"]["low"] > 0 for effect in judged)
    print(f"recovered in {recovered} of {len(judged)}, no effect excluded in {seen}")
    late, cpu = (statistics.median(each) for each in zip(*links, strict=True))
    print(
        f"void {statistics.fmean(void):.1%}; lateness p99 {late:.1f} µs, {cpu:.1f} µs of CPU a packet (medians of trials)"
    )


if __name__ == "__main__":
    main()
