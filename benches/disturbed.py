"""What do other programs on the machine change? A plan on the quiet machine and beside busy loops, in pairs.

    .venv/bin/python benches/disturbed.py [--pairs 6] [--loops 1] [--plan paths] [--out DIRECTORY] [-- MORE OPTIONS OF `howfar run`]

A loop uses one CPU for 3 s of every 10. One loop starts at once; of two, each starts its spells at random moments. For each pair it
prints how long both runs took, the ratios with their intervals, the void trials and the programs that the report names. Files in
DIRECTORY from an earlier call are reused. Nothing else may run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sessions import report_of  # beside this file

from howfar.stats.estimate import Estimate
from howfar.stats.intervals import half_width

PERIOD_S = 10.0
BUSY_S = 3.0
MAX_S = 1200.0
"""A loop ends after this time, whatever happens."""


def burn(seed: int, is_random: bool) -> None:
    """Use one CPU in spells."""
    chance, ends = random.Random(seed), time.monotonic() + MAX_S
    while time.monotonic() < ends:
        busy_until = time.monotonic() + BUSY_S
        while time.monotonic() < busy_until:
            pass
        time.sleep(chance.uniform(0, 2 * (PERIOD_S - BUSY_S)) if is_random else PERIOD_S - BUSY_S)


@contextmanager
def loops(count: int, seed: int) -> Iterator[None]:
    """Busy loops while the block runs."""
    running = [multiprocessing.Process(target=burn, args=(seed + number, count > 1)) for number in range(count)]
    for process in running:
        process.start()
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.join()


def run(file: Path, plan: str, seed: int, more: list[str]) -> dict[str, Any]:
    """The report of one run. How long it took to make is noted beside its file."""
    is_new, began = not file.exists(), time.monotonic()
    report = report_of(file, plan, seed, more, quietly=True)
    if is_new:
        file.with_suffix(".minutes").write_text(f"{(time.monotonic() - began) / 60:.1f}")
    return report


def ratios(report: dict[str, Any]) -> dict[str, Estimate]:
    """The ratios of the arms that are compared with the baseline, the repeated baseline left out."""
    found = {cell["arm"]: Estimate(**cell["ratio"]) for cell in report["cells"] if cell["ratio"] is not None}
    return {arm: ratio for arm, ratio in found.items() if ratio.low not in (None, ratio.high) and "(again)" not in arm}


def describe(report: dict[str, Any], file: Path) -> str:
    """Time, widest interval, void and repeated trials, and the programs that are named."""
    widths = [width for ratio in ratios(report).values() if (width := half_width(ratio)) is not None]
    unused = report["unused"] or {"repeated": 0, "programs": []}
    named = ", ".join(f"{program['name']} {program['max_cpus']:.1f} CPUs" for program in unused["programs"]) or "none"
    minutes = file.with_suffix(".minutes")
    return (
        f"{minutes.read_text() if minutes.exists() else '?'} min; widest ±{max(widths, default=float('nan')):.1%}; "
        f"{report['void_trials']} void, {unused['repeated']} repeated, of {len(report['trials'])}; named: {named}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--loops", type=int, default=1)
    parser.add_argument("--plan", default="paths")
    parser.add_argument("--out", type=Path, default=None)
    options, more = parser.parse_known_args()
    folder = (options.out or Path(tempfile.mkdtemp(prefix="howfar-"))).absolute()
    folder.mkdir(exist_ok=True)
    more = [word for word in more if word != "--"]
    agreeing = 0
    for number in range(1, options.pairs + 1):
        quiet_file, loop_file = folder / f"{number}-quiet.howfar", folder / f"{number}-{options.loops}-loops.howfar"
        quiet = run(quiet_file, options.plan, number, more)
        if loop_file.exists():
            disturbed = run(loop_file, options.plan, number, more)
        else:
            with loops(options.loops, number):
                disturbed = run(loop_file, options.plan, number, more)
        print(f"pair {number}\n  quiet  {describe(quiet, quiet_file)}\n  loops  {describe(disturbed, loop_file)}")
        before, beside = ratios(quiet), ratios(disturbed)
        agrees = bool(before) and before.keys() <= beside.keys()
        for arm in before.keys() & beside.keys():
            low, high = beside[arm].low or 0.0, beside[arm].high or 0.0
            holds = low <= before[arm].value <= high
            agrees = agrees and holds
            beside_text = f"{beside[arm].value:.3f} [{low:.3f}, {high:.3f}] beside the loops"
            print(f"  {arm:18} {before[arm].value:.3f} quiet, {beside_text}{'' if holds else ': DIFFERS'}")
        agreeing += agrees
        sys.stdout.flush()
    print(
        f"all ratios of the quiet run are within the intervals beside the loops in {agreeing} of {options.pairs} pairs"
    )


if __name__ == "__main__":
    main()
