"""Does a recording have as many round trips as a client library makes? Compares client programs, by tap and by packets, with a table.

    .venv/bin/python benches/drivers.py --expected drivers.tsv [--install] [--cache DIR] [--only psycopg,mysqli] [--trips]

Each program of `benches/drivers/` connects, runs three queries of one text, one prepared statement twice and one UPDATE in a
transaction, or fetches 2000 rows in batches of 100. It marks each step as a page. All programs of a server run one after the other
inside one `howfar record`, first through the tap, then (root, tcpdump) with `--interface lo`. A total has every answered round trip of
a program.

`--expected` names a table, tab separated, with a header and the columns client, version, server and total, whose first number counts;
`#` begins a comment. `--install` fetches the versions that the table names into the cache with pip, npm, go and mvn, which need a
registry; to measure other versions, change them in a copy of the table. `--trips` lists the round trips of every program, not only of
those that differ. `rows` counts a cursor or a batch, `other` what lies between steps or closes. Exit code 1 if a total is not as
expected, tap and capture differ, or a program fails.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from howfar.lab.network import Host, usable_cpus
from howfar.lab.servers import ServerContext, Tables, find_store
from howfar.recording.recording import Recording, RoundTrip, read

PROGRAMS = Path(__file__).parent / "drivers"
HOWFAR = [sys.executable, "-c", "import sys; from howfar.cli import main; sys.exit(main())"]
STEPS = ("connect", "queries", "prepared", "transaction", "rows")
METHODS = {"tap": (), "capture": ("--interface", "lo")}
PROGRAM_S, RECORD_S, INSTALL_S = 120, 1800, 1800
FAILED = "it failed: "


@dataclass(frozen=True)
class Language:
    """How client programs of one language are installed and started. `{cache}` stands for the cache in each text."""

    tool: str
    """A program that must be in PATH."""
    command: tuple[str, ...]
    install: Callable[[Path, dict[str, str]], None]
    """A function of the cache and of the version of each package."""
    installed: str = ""
    """A pattern that matches something in the cache once the package `{name}` is installed."""
    environment: tuple[tuple[str, str], ...] = ()


def run(*command: str | Path, cwd: Path | None = None, **environment: str) -> None:
    subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, check=True, timeout=INSTALL_S)


def install_python(cache: Path, packages: dict[str, str]) -> None:
    run(sys.executable, "-m", "venv", cache / "python")
    specs = [f"{name}=={version}" for name, version in packages.items()]
    run(cache / "python/bin/pip", "install", "--quiet", "--disable-pip-version-check", *specs)


def install_node(cache: Path, packages: dict[str, str]) -> None:
    specs = [f"{name}@{version}" for name, version in packages.items()]
    run("npm", "install", "--silent", "--no-save", "--prefix", cache / "node", *specs)


def install_go(cache: Path, packages: dict[str, str]) -> None:
    settings = {"GOMODCACHE": f"{cache}/go/mod", "GOCACHE": f"{cache}/go/build", "GOFLAGS": "-modcacherw"}
    go = partial(run, "go", cwd=cache / "go", **settings)
    shutil.copy(PROGRAMS / "clients.go", cache / "go")
    if not (cache / "go/go.mod").exists():
        go("mod", "init", "drivers")
    go("get", *(f"{name}@v{version}" for name, version in packages.items()))
    go("build", "-o", "clients", ".")


def install_java(cache: Path, packages: dict[str, str]) -> None:
    copy = ("mvn", "-q", "-B", "dependency:copy", f"-DoutputDirectory={cache}/java")
    for name, version in packages.items():
        for old in (cache / "java").glob(f"{name.partition(':')[2]}-*.jar"):
            old.unlink()
        run(*copy, f"-Dmaven.repo.local={cache}/java/repository", f"-Dartifact={name}:{version}")


LANGUAGES = {
    "python": Language(
        "python3",
        ("{cache}/python/bin/python", f"{PROGRAMS}/python_clients.py"),
        install_python,
        "python/lib/python*/site-packages/{name}-*.dist-info",
        (("PYTHONPATH", ""),),
    ),
    "php": Language("php", ("php", f"{PROGRAMS}/clients.php"), lambda cache, packages: None),
    "node": Language(
        "node",
        ("node", f"{PROGRAMS}/clients.mjs"),
        install_node,
        "node/node_modules/{name}/package.json",
        (("NODE_PATH", "{cache}/node/node_modules"),),
    ),
    "go": Language("go", ("{cache}/go/clients",), install_go, "go/clients"),
    "java": Language(
        "java", ("java", "-cp", "{cache}/java/*", f"{PROGRAMS}/Clients.java"), install_java, "java/{name}-*.jar"
    ),
}


@dataclass(frozen=True)
class Client:
    """A client program."""

    name: str
    """The name in the table of expected counts."""
    server: str
    language: str
    program: str
    package: str
    """The library's name in its registry, or the name of a PHP extension."""

    def missing(self, cache: Path) -> str | None:
        """Why it cannot run here; None if it can."""
        language = LANGUAGES[self.language]
        if shutil.which(language.tool) is None:
            return f"{language.tool} is not installed"
        if self.language == "php":
            loaded = subprocess.run(["php", "-m"], capture_output=True, text=True).stdout.split()
            return None if self.package in loaded else f"PHP has no {self.package}"
        name = self.package.rpartition(":")[2].partition("[")[0]
        names = (name, name.lower().replace("-", "_"))
        if any(list(cache.glob(language.installed.format(name=one))) for one in names):
            return None
        return f"{self.package} is not in the cache: --install"

    def command(self, cache: Path) -> list[str]:
        language = LANGUAGES[self.language]
        values = [f"{name}={text}" for name, text in language.environment]
        return [part.replace("{cache}", str(cache)) for part in ("env", *values, *language.command, self.program)]


MYSQL_GO, JDBC = "github.com/go-sql-driver/mysql", "org.postgresql:postgresql"
MARIADB, POSTGRESQL = "mariadb", "postgresql"
CLIENTS = (
    Client("PyMySQL", MARIADB, "python", "pymysql", "PyMySQL"),
    Client("mysqlclient", MARIADB, "python", "mysqlclient", "mysqlclient"),
    Client("mysql-connector-python, pure", MARIADB, "python", "mysql-connector", "mysql-connector-python"),
    Client("mariadb (Python, C)", MARIADB, "python", "mariadb", "mariadb"),
    Client("SQLAlchemy on PyMySQL", MARIADB, "python", "sqlalchemy-pymysql", "SQLAlchemy"),
    Client("SQLAlchemy on psycopg", POSTGRESQL, "python", "sqlalchemy-psycopg", "SQLAlchemy"),
    Client("psycopg", POSTGRESQL, "python", "psycopg", "psycopg[binary]"),
    Client("psycopg, pipeline", POSTGRESQL, "python", "psycopg-pipeline", "psycopg[binary]"),
    Client("psycopg, named cursor, 2000 rows by 100", POSTGRESQL, "python", "psycopg-cursor", "psycopg[binary]"),
    Client("psycopg2", POSTGRESQL, "python", "psycopg2", "psycopg2-binary"),
    Client("asyncpg", POSTGRESQL, "python", "asyncpg", "asyncpg"),
    Client("asyncpg, cursor, 2000 rows by 100", POSTGRESQL, "python", "asyncpg-cursor", "asyncpg"),
    Client("pg8000", POSTGRESQL, "python", "pg8000", "pg8000"),
    Client("mysql2 (Node)", MARIADB, "node", "mysql2", "mysql2"),
    Client("mariadb (Node)", MARIADB, "node", "mariadb", "mariadb"),
    Client("mariadb (Node), pipelined queries, batch of 3", MARIADB, "node", "mariadb-pipeline", "mariadb"),
    Client("pg (Node)", POSTGRESQL, "node", "pg", "pg"),
    Client("pg-cursor (Node), 2000 rows by 100", POSTGRESQL, "node", "pg-cursor", "pg-cursor"),
    Client("go-sql-driver/mysql", MARIADB, "go", "mysql", MYSQL_GO),
    Client("go-sql-driver/mysql, interpolateParams", MARIADB, "go", "mysql-interpolate", MYSQL_GO),
    Client("lib/pq", POSTGRESQL, "go", "pq", "github.com/lib/pq"),
    Client("pgx, sslmode=prefer, and a batch of 3", POSTGRESQL, "go", "pgx", "github.com/jackc/pgx/v5"),
    Client("PDO mysql, native prepares", MARIADB, "php", "mysql-native", "pdo_mysql"),
    Client("PDO mysql, emulated prepares", MARIADB, "php", "mysql-emulated", "pdo_mysql"),
    Client("PDO pgsql, native prepares, sslmode=prefer", POSTGRESQL, "php", "pgsql-native", "pdo_pgsql"),
    Client("PDO pgsql, emulated prepares, sslmode=prefer", POSTGRESQL, "php", "pgsql-emulated", "pdo_pgsql"),
    Client("mysqli", MARIADB, "php", "mysqli", "mysqli"),
    Client("MariaDB Connector/J", MARIADB, "java", "mariadb", "org.mariadb.jdbc:mariadb-java-client"),
    Client("MySQL Connector/J, server-side prepares", MARIADB, "java", "mysql", "com.mysql:mysql-connector-j"),
    Client("pgjdbc, sslmode=prefer", POSTGRESQL, "java", "postgresql", JDBC),
    Client("pgjdbc, fetch size 100, 2000 rows", POSTGRESQL, "java", "postgresql-rows", JDBC),
)


@dataclass(frozen=True)
class Expected:
    """A row of the table of expected counts."""

    version: str
    server: str
    total: int

    @staticmethod
    def table(path: Path) -> dict[str, Expected]:
        """The rows of the table by client."""
        lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
        rows = csv.DictReader(lines, delimiter="\t")
        return {row["client"]: Expected(row["version"], row["server"], int(row["total"].split()[0])) for row in rows}


def install(cache: Path, clients: Sequence[Client], expected: dict[str, Expected]) -> None:
    """Fetch the libraries. A failure affects only its own language."""
    for name, language in LANGUAGES.items():
        of_language = [one for one in clients if one.language == name and one.name in expected]
        packages = {one.package: expected[one.name].version for one in of_language}
        (cache / name).mkdir(parents=True, exist_ok=True)
        try:
            if packages:
                language.install(cache, packages)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"{name}: {error}", file=sys.stderr)


def write_mariadb_program(work: Path) -> Path:
    """A program that starts MariaDB with its usual default character set instead of the laboratory's, which some clients then
    change."""
    server = work / "mariadbd"
    server.write_text(
        '#!/bin/sh\nexec mariadbd "$@" --character-set-server=latin1 --collation-server=latin1_swedish_ci\n'
    )
    server.chmod(0o755)
    return server


@contextmanager
def running(kind: str, work: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Run a server on this machine's loopback; yields the programs' environment and the server's version."""
    store = find_store(str(write_mariadb_program(work)) if kind == MARIADB else kind, Tables(1, 10_000))
    store.prepare(ServerContext(work, Host("here", None), usable_cpus(), 64, namespaced=False))
    server = store.start(networking=True, transport="tcp")
    try:
        login = {"USER": store.user, "PASSWORD": store.password, "NAME": store.database}
        address = {"HOST": str(server.address), "PORT": str(server.port)}
        yield (
            {f"DB_{name}": text for name, text in {**address, **login}.items()},
            f"{kind} {store.version.split('-')[0]}",
        )
    finally:
        server.stop()


@dataclass(frozen=True)
class ProgramRun:
    """A run of a client program: its times, the version of its library, and its error, if any."""

    client: str
    begun_ns: int
    ended_ns: int
    version: str
    failed: str


def run_programs(commands: dict[str, list[str]], out: Path) -> None:
    """Run the programs one after the other, inside `howfar record`, which changes the address in the environment."""
    ran = []
    for client, command in commands.items():
        begun_ns = time.monotonic_ns()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S)
            said, failed = done.stdout, (done.stderr.strip() or str(done.returncode)) if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            said, failed = "", str(error)
        ran.append([client, begun_ns, time.monotonic_ns(), said.partition("\n")[0], failed])
    out.write_text(json.dumps(ran))


@dataclass(frozen=True)
class Counted:
    """The round trips of one program in a recording."""

    ran: ProgramRun
    steps: Counter[str]
    total: int
    trips: list[str]
    """Step and statement of each round trip."""


Found = dict[str, Counted] | str
"""Counts by tap and by capture, or the reason why there are none."""


def record(
    clients: Sequence[Client], cache: Path, login: dict[str, str], method: str, work: Path
) -> dict[str, Counted]:
    """Run the programs inside one recording; by client."""
    out, results = work / f"{method}.recording", work / f"{method}.json"
    commands = {one.name: one.command(cache) for one in clients}
    options = ["--server", f"{login['DB_HOST']}:{login['DB_PORT']}", "--out", str(out), *METHODS[method]]
    inner = [sys.executable, __file__, "--run", json.dumps(commands), str(results)]
    done = subprocess.run(
        [*HOWFAR, "record", *options, "--", *inner],
        env={**os.environ, **login},
        capture_output=True,
        text=True,
        timeout=RECORD_S,
    )
    if done.returncode != 0:
        sys.exit(f"howfar record, {method}: exit code {done.returncode}: {done.stderr[-2000:]}")
    recording = read(out)
    if recording.facts.unknown or not recording.facts.complete:
        print(f"{method}: unknown {recording.facts.unknown}, stopped {recording.facts.stopped}", file=sys.stderr)
    return {row[0]: count(recording, ProgramRun(*row)) for row in json.loads(results.read_text())}


def count(recording: Recording, ran: ProgramRun) -> Counted:
    """The round trips that began while a program ran."""
    steps: dict[int | None, str] = {page.id: page.name for page in recording.pages}
    own = [one for one in recording.round_trips if one.is_answered and ran.begun_ns <= one.begun_ns <= ran.ended_ns]

    def described(one: RoundTrip) -> str:
        text = recording.digest_by_id[one.digest_id].text if one.digest_id is not None else ""
        many = f" x{one.requests}" if one.requests > 1 else ""
        return f"{steps.get(one.page_id, 'other'):12}{one.command}{many}  {text[:80]}"

    return Counted(ran, Counter(steps.get(one.page_id, "other") for one in own), len(own), [*map(described, own)])


def row(client: Client, counted: dict[str, Counted], expected: Expected | None, server: str) -> list[str]:
    """A row of the printed table: each count as TAP/CAPTURE."""
    found = list(counted.values())
    cells = ["/".join(str(one.steps[step]) for one in found) for step in (*STEPS, "other")]
    version = found[0].ran.version
    notes = []
    if expected is not None and expected.version != version:
        notes.append(f"the table has {expected.version}")
    if expected is not None and not server.lower().startswith(expected.server.lower()):
        notes.append(f"the table has {expected.server}")
    cells += ["/".join(str(one.total) for one in found), str(expected.total) if expected else "-"]
    return [client.name, version, server, *cells, verdict(counted, expected), "; ".join(notes)]


def verdict(counted: dict[str, Counted], expected: Expected | None) -> str:
    found = list(counted.values())
    if any(one.steps != found[0].steps for one in found):
        return "tap and capture differ"
    if expected is None:
        return "not in the table"
    return "equal" if found[0].total == expected.total else "not equal"


def measure(kind: str, clients: Sequence[Client], options: argparse.Namespace) -> Iterator[tuple[Client, Found, str]]:
    """Each client with its counts by tap and by capture, or the reason why it has none, and the server's version."""
    able = [one for one in clients if not one.missing(options.cache)]
    yield from ((one, reason, kind) for one in clients if (reason := one.missing(options.cache)))
    if not able:
        return
    with tempfile.TemporaryDirectory(prefix="howfar-") as name, running(kind, Path(name)) as (login, server):
        found = {method: record(able, options.cache, login, method, Path(name)) for method in options.methods}
    for client in able:
        counted = {method: by_client[client.name] for method, by_client in found.items()}
        failed = [one.ran.failed for one in counted.values() if one.ran.failed]
        yield client, f"{FAILED}{failed[0][:500]}" if failed else counted, server


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def main() -> int:
    if sys.argv[1:2] == ["--run"]:
        run_programs(json.loads(sys.argv[2]), Path(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--expected", type=Path, required=True)
    parser.add_argument("--install", action="store_true")
    parser.add_argument(
        "--cache", type=lambda text: Path(text).absolute(), default=Path("~/.cache/howfar/drivers").expanduser()
    )
    parser.add_argument("--only", default="", help="programs whose names contain one of these")
    parser.add_argument("--trips", action="store_true")
    options = parser.parse_args()
    options.methods = [
        method for method in METHODS if method == "tap" or (os.geteuid() == 0 and shutil.which("tcpdump"))
    ]
    expected = Expected.table(options.expected)
    clients = [one for one in CLIENTS if any(part in one.name for part in options.only.split(","))]
    if options.install:
        install(options.cache, clients, expected)
    rows = [["client", "version", "server", *STEPS, "other", "total", "expected", "verdict", "note"]]
    without, listed = [], []
    for kind in (MARIADB, POSTGRESQL):
        for client, found, server in measure(kind, [one for one in clients if one.server == kind], options):
            if isinstance(found, str):
                without.append(f"{client.name}: {found}")
                continue
            rows.append(row(client, found, expected.get(client.name), server))
            if options.trips or rows[-1][-2] != "equal":
                listed += [f"\n{client.name}, {method}:\n  " + "\n  ".join(one.trips) for method, one in found.items()]
    print(*listed, sep="\n")
    print(f"\nCounts: {' / '.join(options.methods)}")
    print_table(rows)
    without += [f"{name}: no program" for name in sorted(expected.keys() - {one.name for one in CLIENTS})]
    print(*(f"without counts: {text}" for text in without), sep="\n")
    good = all(cells[-2] == "equal" for cells in rows[1:]) and not any(FAILED in text for text in without)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
