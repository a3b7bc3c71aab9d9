"""Does a recording made over the socket predict other paths? Applications are recorded, predicted, then run.

    .venv/bin/python benches/applications/predicted.py [--apps django,wordpress,redis,threads-postgresql,threads-mariadb] [--blocks 4]
        [--rtts 0.5ms,5ms,85ms]

The applications: Django with a loop of queries, WordPress, a PHP page with its session in Redis, and pages that query over several
connections at once. Needs what `./setup --tests` installs; another WordPress: WORDPRESS=/usr/share/wordpress. Each run is a
`howfar lab` with its own data; over TLS the application reports the version of its connection (those that cannot are not run over
TLS). In each block everything is recorded and run once, in random order, so that changes of the machine between blocks affect both.
Limits: error of the p50 8 % on average and 15 % at most, of the p95 16 % on average; nine of ten in the interval; the saving of the
page without the loop is in its predicted interval.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from wordpress_pages import WARM

from howfar.recording.recording import seal
from howfar.stats.intervals import mean_interval

HERE = Path(__file__).parent
HOWFAR = [sys.executable, "-c", "import sys; from howfar.cli import main; sys.exit(main())"]
WORDPRESS = Path(os.environ.get("WORDPRESS", HERE.parents[1] / ".boot/wordpress/usr/share/wordpress"))
TIMEOUT_S = 900


@dataclass(frozen=True)
class App:
    name: str
    server: str
    prepare: tuple[str, ...]
    pages: tuple[str, ...]
    count: tuple[str, ...] = ()
    """The command that prints the server's counters."""
    loop: tuple[str, str] | None = None
    """A page with a loop of requests, and the same page with one request."""
    is_sql: bool = True
    """Its laboratory has tables."""
    says_tls: bool = True
    """It reports the TLS version of its connection."""
    is_concurrent: bool = False
    """It computes on several CPUs, as many as it had when it was recorded."""


def apps(work: Path) -> dict[str, App]:
    root = str(work / "wordpress")
    django = ("/usr/bin/python3", str(HERE / "django_pages.py"))
    redis = ("php", str(HERE / "redis_pages.php"))
    wordpress = (sys.executable, str(HERE / "wordpress_pages.py"))
    threads = str(HERE / "concurrent_pages.py")
    of_python = {"postgresql": "/usr/bin/python3", "mariadb": sys.executable}
    concurrent = {
        f"threads-{server}": App(
            f"threads-{server}",
            server,
            (python, threads, "prepare"),
            (python, threads, "widgets,gateway"),
            says_tls=False,
            is_concurrent=True,
        )
        for server, python in of_python.items()
    }
    return {
        **concurrent,
        "django": App("django", "postgresql", (*django, "prepare"), (*django, "list,joined"), loop=("list", "joined")),
        "redis": App(
            "redis",
            "redis",
            (*redis, "prepare"),
            (*redis, "cart,bulk"),
            loop=("cart", "bulk"),
            is_sql=False,
            says_tls=False,
        ),
        "wordpress": App(
            "wordpress",
            "mariadb",
            (*wordpress, "prepare", root),
            (*wordpress, "pages", root),
            (*wordpress, "count", root),
        ),
    }


def lab(app: App, link: Sequence[str], inner: Sequence[str]) -> dict[str, Any]:
    """Run `inner` in a laboratory whose server has the prepared data; returns its lines of JSON, with the server's counts as
    `counted`. On a local path, and if the application uses several CPUs, all processes may use any CPU, as outside a laboratory;
    otherwise application, tap and recorder would have only half of the CPUs."""
    ready = Path(tempfile.mkdtemp()) / "ready"
    prepare = f"{' '.join(app.prepare)} && touch {ready} || touch {ready}.failed; sleep {TIMEOUT_S}"
    waiting = [
        sys.executable,
        __file__,
        "--wait",
        str(ready),
        json.dumps(app.count),
        *["--free"] * (app.is_concurrent or "--rtt" not in link),
    ]
    tables = ["--tables", "1", "--table-size", "1"] if app.is_sql else []
    command = [*HOWFAR, "lab", "--server", app.server, *tables, *link, "--on-server", prepare, "--", *waiting, *inner]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        sys.exit(f"{' '.join(link)}: {done.stderr[-1500:]}")
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line) if line.startswith("{") else {}
    if (tls := found.pop("tls", None)) != (f"TLSv{link[-1]}" if "--tls" in link else None):
        sys.exit(f"{' '.join(link)}: the application's connection has TLS {tls}")
    return found


def wait(arguments: Sequence[str]) -> None:
    """Wait for the data, run the command with {socket} replaced by the server's, and print what the server counts during it."""
    ready = Path(arguments[0])
    deadline = time.monotonic() + 300
    while not ready.exists():
        if Path(f"{ready}.failed").exists() or time.monotonic() > deadline:
            sys.exit("the data could not be prepared")
        time.sleep(0.1)
    socket = os.environ.get("HOWFAR_SOCKET") or _libpq()
    command = [argument.replace("{socket}", socket) for argument in arguments[2:]]
    if command[0] == "--free":
        allow_all_cpus()
        del command[0]

    def count() -> Counter[str]:
        command = json.loads(arguments[1])
        return Counter(json.loads(subprocess.check_output(command)) if command else {})

    first, before = count(), count()
    done = subprocess.run(command)
    # The server also counts the reading of its counters.
    print(json.dumps({"counted": count() - before - (before - first)}))
    sys.exit(done.returncode)


def allow_all_cpus() -> None:
    """Let this process and the server, the only ones in this PID namespace, run on any CPU."""
    for comm in Path("/proc").glob("[0-9]*/comm"):
        if int(comm.parent.name) == os.getpid() or comm.read_text().strip() in ("mariadbd", "postgres", "redis-server"):
            for task in (comm.parent / "task").iterdir():
                os.sched_setaffinity(int(task.name), range(os.cpu_count() or 1))


def _libpq() -> str:
    """The real name of the server's socket, from libpq's variable."""
    found = list(Path(os.environ["PGHOST"]).glob(".s.PGSQL.*")) if os.environ.get("PGHOST", "").startswith("/") else []
    return str(found[0].resolve()) if found else ""


def record(app: App, out: Path, pages: int) -> dict[str, int]:
    """Record an application; returns the server's counts during the recording."""
    php = ["--php"] if app.name == "wordpress" else []
    inner = [*HOWFAR, "record", "--server", "{socket}", "--out", str(out), *php, "--", *app.pages, str(pages)]
    counted: dict[str, int] = lab(app, ["--path", "socket"], inner)["counted"]
    if php:  # PHP also marks the warm-up pages
        with closing(sqlite3.connect(out, isolation_level=None)) as db:
            rank = "SELECT id, row_number() OVER (PARTITION BY name ORDER BY begun_ns) AS at FROM pages"
            db.execute(f"DELETE FROM pages WHERE id IN (SELECT id FROM ({rank}) WHERE at <= {WARM})")
            db.execute("UPDATE round_trips SET page_id = NULL WHERE page_id NOT IN (SELECT id FROM pages)")
            seal(db)
    return counted


def predict(recording: Path, link: Sequence[str]) -> dict[str, Any]:
    command = [*HOWFAR, "predict", str(recording), *link, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        print(f"   predict {' '.join(link)}: exit code {done.returncode} {done.stderr[-300:]}", file=sys.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def links(app: App, rtts: str, remote_only: bool) -> list[list[str]]:
    remote = [["--path", "remote", "--rtt", rtt] for rtt in rtts.split(",") if rtt]
    if remote_only:
        return remote
    return [
        ["--path", "socket"],
        ["--path", "tcp"],
        *([["--path", "tcp", "--tls", "1.3"]] if app.says_tls else []),
        *remote,
        *([["--path", "pgbouncer", "--rtt", "0.5ms"]] if app.name == "django" else []),
    ]


@dataclass(frozen=True)
class Row:
    """One page on one path in one block: what was predicted and what it took, in ms."""

    page: str
    link: str
    p50: tuple[float, float]
    p95: tuple[float, float]
    is_inside: bool
    """Whether the interval or range that was predicted for the p50 contains the measured one."""


def block(app: App, recording: Path, paths: Sequence[Sequence[str]], pages: int, rng: random.Random) -> list[Row]:
    """Record on the socket and run on every path, in random order, so that drift affects all equally."""
    runs: list[Sequence[str] | None] = [None, *paths]
    times: dict[str, dict[str, list[int]]] = {}
    for link in rng.sample(runs, len(runs)):
        if link is None:
            record(app, recording, pages)
        else:
            times[" ".join(link)] = lab(app, link, [*app.pages, str(page_count(pages, link[-1]))])
    return [row for link in paths for row in compare(app, recording, link, times[" ".join(link)])]


def page_count(pages: int, rtt: str) -> int:
    """The number of pages to run: fewer if the round trip is long."""
    ms = float(rtt.removesuffix("ms")) if rtt.endswith("ms") else 0.0
    return pages if ms < 2 else max(5, round(pages * 2 / ms))


def compare(app: App, recording: Path, link: Sequence[str], measured: dict[str, list[int]]) -> list[Row]:
    found, rows = predict(recording, link), []
    for page in found["pages"]:
        name = page["name"]
        if page["missed"]:
            error = page["present_error"]
            print(f"{app.name:10} {name:10} {' '.join(link[1:]):22} not predicted ({error:+.0%})", flush=True)
            continue
        p50, p95 = np.quantile(np.asarray(measured[name]) / 1e6, (0.5, 0.95))
        one, other = (page[which]["bottom_up"]["value"] for which in ("p50_ms", "p95_ms"))
        limits = page["p50_ms"]["bottom_up"]
        is_inside = limits["low"] is not None and limits["low"] <= p50 <= limits["high"]
        rows.append(Row(name, " ".join(link[1:]), (one, float(p50)), (other, float(p95)), is_inside))
        print(f"{app.name:10} {name:10} {' '.join(link[1:]):18} "
              f"p50 predicted {one:8.2f} run {p50:8.2f} ms {one / p50 - 1:+6.1%}   p95 "
              f"{other:8.2f} run {p95:8.2f} {other / p95 - 1:+6.1%}{'' if is_inside else '   NOT inside'}", flush=True)  # fmt: skip
    looped, once = app.loop or (None, "")
    loops = [one for one in found["changes"] if one["kind"] == "loop" and one["page"] == looped]
    if loops and looped:
        saved = statistics.median(measured[looped]) / 1e6 - statistics.median(measured[once]) / 1e6
        held = loops[0]["low_ms"] <= saved <= loops[0]["high_ms"]
        print(f"{app.name:10} one query saves {loops[0]['low_ms']:.1f} to {loops[0]['high_ms']:.1f} ms, run {saved:.1f}: "
              f"{'held' if held else 'NOT held'}", flush=True)  # fmt: skip
    return rows


def table(app: App, rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Print the error of each page on each path, p50 and p95: the mean of the ratios of all blocks, with its interval."""
    found = []
    for page, link in dict.fromkeys((row.page, row.link) for row in rows):
        mine = [row for row in rows if (row.page, row.link) == (page, link)]
        errors = [mean_interval([math.log(one / other) for one, other in pairs])
                  for pairs in ([row.p50 for row in mine], [row.p95 for row in mine])]  # fmt: skip
        p50, p95 = (math.expm1(error.value) for error in errors)
        low, high = errors[0].low, errors[0].high
        limits = "" if low is None or high is None else f" [{math.expm1(low):+.1%}, {math.expm1(high):+.1%}]"
        ran = statistics.median(row.p50[1] for row in mine)
        print(f"| {app.name} {page} | {link} | {ran:.1f} | {p50:+.1%}{limits} | {p95:+.1%} | {len(mine)} |", flush=True)
        found.append((abs(p50), abs(p95)))
    return found


def main() -> None:
    if sys.argv[1:2] == ["--wait"]:
        wait(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--apps", default="django,wordpress")
    parser.add_argument("--pages", type=int, default=20)
    parser.add_argument(
        "--blocks", type=int, default=4, help="In each, everything is recorded and run once, in random order."
    )
    parser.add_argument("--seed", type=int, default=20_263)
    parser.add_argument("--rtts", default="0.5ms,5ms,85ms")
    parser.add_argument("--remote-only", action="store_true", help="Leave out the paths of one machine and PgBouncer.")
    parser.add_argument("--record-only", type=Path, metavar="FOLDER", help="Leave the recordings there, and end.")
    options = parser.parse_args()
    errors: list[tuple[float, float]] = []
    inside: list[bool] = []
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="howfar-apps-") as folder:
        work = Path(folder)
        for name in options.apps.split(","):
            app = apps(work)[name]
            if name == "wordpress":
                shutil.copytree(WORDPRESS, work / "wordpress", symlinks=True)
            if options.record_only:
                print(json.dumps(record(app, options.record_only / f"{name}.recording", options.pages)))
                continue
            rows: list[Row] = []
            for number in range(options.blocks):
                rows += block(
                    app,
                    work / f"{name}-{number}.recording",
                    links(app, options.rtts, options.remote_only),
                    options.pages,
                    rng,
                )
            errors += table(app, rows)
            inside += [row.is_inside for row in rows]
    if errors:
        p50, p95 = zip(*errors, strict=True)
        print(f"{sum(inside)} of {len(inside)} predictions hold what ran")
        print(f"p50: mean {statistics.mean(p50):.1%}, worst {max(p50):.1%}; p95: mean {statistics.mean(p95):.1%}")


if __name__ == "__main__":
    main()
