"""What does recording cost a page? Alternates Django's pages with and without recording within one process.

    .venv/bin/python benches/applications/recording_cost.py tap|packets [--pages 100] [--windows 12]

By tap: each page is made twice, through the tap and over a second name of the server's socket that the tap does not cover. By packets:
one process makes pages continuously, while the capture is on and off for a few seconds each. Limits: 5 % and 3 %.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from predicted import HERE, HOWFAR, App, apps, lab

from howfar.stats.estimate import Estimate
from howfar.stats.intervals import hodges_lehmann

PAGES = [sys.executable, __file__, "--inside"]
WINDOW_S = 3.0
DJANGO = ("/usr/bin/python3", str(HERE / "django_pages.py"))


def tap(app: App, pages: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "django.recording"
        found = lab(app, ["--path", "socket"], [*PAGES, "tap", "{socket}", str(recording), str(pages)])
        summary = found.pop("summary")
    for name in ("list", "joined"):
        one, other = found[name], found[f"{name}.direct"]
        show("tap", name, [math.log(with_it / without) for with_it, without in zip(one, other, strict=True)], other)
    for page in summary["pages"]:
        if "." not in page["name"]:
            print(f"  the recorder's own estimate: {page['name']} {page['recording']['value']:.1%} of the page's time")
    print(f"  a round trip through the tap: {summary['tap_us']}")


def packets(app: App, windows: int) -> None:
    found = lab(app, ["--path", "tcp"], [*PAGES, "packets", str(windows)])
    for name in ("list", "joined"):
        on, off = found[f"{name}.on"], found[f"{name}.off"]
        logs = [math.log(on[at] / statistics.fmean(off[at : at + 2])) for at in range(len(on))]
        show("packets", name, logs, off)


def show(method: str, name: str, logs: Sequence[float], without: Sequence[float]) -> None:
    """Print the rank estimate of the ratios' logarithms, which a page delayed by another program hardly changes."""
    cost = hodges_lehmann(logs)
    print(f"{method:8} {name:8} {percent(cost)} of {statistics.median(without) / 1e6:.2f} ms, {len(logs)} pairs")


def percent(cost: Estimate) -> str:
    value, low, high = (math.nan if one is None else math.expm1(one) for one in (cost.value, cost.low, cost.high))
    return f"{value:+.1%} [{low:+.1%}, {high:+.1%}]"


# ---------------------------------------------------------------- in the laboratory


def inside_tap(server: str, recording: str, pages: str) -> None:
    """Record by tap within the laboratory. A hard link names the same socket, and no mount covers it."""
    directory = Path(server).parent / "direct"
    directory.mkdir()
    os.link(server, directory / f".s.PGSQL.{os.environ['PGPORT']}")
    names = "list,list.direct,joined,joined.direct"
    command = [*HOWFAR, "record", "--server", server, "--out", recording, "--json", "--", *DJANGO, names, pages]
    # The pages' line goes to stderr, because the summary is on stdout.
    with tempfile.TemporaryFile("w+") as err:
        done = subprocess.run(
            command,
            env={**os.environ, "DIRECT": str(directory)},
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            check=True,
        )
        err.seek(0)
        (line,) = [line for line in err if line.startswith("{")]
    print(json.dumps({**json.loads(line), "summary": json.loads(done.stdout)}))


def inside_packets(windows: str) -> None:
    marks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    marks.bind(("127.0.0.1", 0))
    marks.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    address = f"127.0.0.1:{marks.getsockname()[1]}"
    pages: list[tuple[int, int, str]] = []
    spans: list[tuple[str, int, int]] = []
    with subprocess.Popen([*DJANGO, "list,joined", "1000000"], env={**os.environ, "HOWFAR_MARKS": address}) as process:
        try:
            marks.recv(4096)
            for _ in range(int(windows)):
                spans.append(window_without_recording())
                pages += read_marks(marks)
                spans.append(window_with_recording())
                pages += read_marks(marks)
            spans.append(window_without_recording())
            pages += read_marks(marks)
        finally:
            process.kill()
    found: dict[str, list[float]] = {}
    for kind, begun, ended in spans:
        for name in ("list", "joined"):
            took = [end - begin for begin, end, which in pages if which == name and begun <= begin and end <= ended]
            found.setdefault(f"{name}.{kind}", []).append(statistics.median(took))
    print(json.dumps(found))


def window_without_recording() -> tuple[str, int, int]:
    begun = time.monotonic_ns()
    time.sleep(WINDOW_S)
    return "off", begun, time.monotonic_ns()


def window_with_recording() -> tuple[str, int, int]:
    """A window that begins when the recorder reports that it captures."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*HOWFAR, "record", "--interface", "lo", "--server", f"{os.environ['PGHOST']}:{os.environ['PGPORT']}"]
        command += ["--time", f"{WINDOW_S + 1:.0f}s", "--out", f"{folder}/it.recording"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as recorder:
            assert recorder.stderr is not None
            for line in recorder.stderr:
                if re.search("recording packets", line):
                    break
            begun = time.monotonic_ns()
            ended = begun + round(WINDOW_S * 1e9)
            recorder.stderr.read()
            if recorder.wait() != 0:
                sys.exit("the recorder failed")
    return "on", begun, ended


def read_marks(marks: socket.socket) -> list[tuple[int, int, str]]:
    found = []
    marks.setblocking(False)
    try:
        while True:
            _, _, begun, ended, _, name = marks.recv(4096).decode().split()
            found.append((int(begun), int(ended), name))
    except BlockingIOError:
        return found


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        {"tap": inside_tap, "packets": inside_packets}[sys.argv[2]](*sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("method", choices=("tap", "packets"))
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--windows", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="howfar-apps-") as folder:
        app = apps(Path(folder))["django"]
        if options.method == "tap":
            tap(app, options.pages)
        else:
            packets(app, options.windows)


if __name__ == "__main__":
    main()
