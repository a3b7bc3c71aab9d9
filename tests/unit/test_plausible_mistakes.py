"""What people type who know other programs, or are new to this one: the answer names what to type instead, and never misleads."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from tests.shipped import skip_without

from howfar.cli.distance import DURATION, SECONDS
from howfar.cli.main import cli, looks_like_target, run_command_line
from howfar.cli.suggest import COMMANDS, OPTIONS, SUBCOMMANDS, is_accepted
from howfar.errors import UsageError
from howfar.load.cmdline import (
    ACTIONS,
    ALTERNATIVES,
    KINDS,
    PGBENCH_SWITCHES,
    PGBENCH_VALUE_OPTIONS,
    parse_command_line,
    translate,
    unknown_option_error,
)
from howfar.load.options import BY_NAME

Howfar = Callable[[str], tuple[int, str, str]]
PASSWORD = "--password-file"
TARGET = "`howfar TARGET`"


@pytest.fixture
def howfar(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Howfar:
    monkeypatch.chdir(tmp_path)
    for name, text in {"notarun": "text", "f": "text", "own.toml": 'name = "x"\n', "run.howfar": "x"}.items():
        Path(name).write_text(text)

    def call(line: str) -> tuple[int, str, str]:
        code = run_command_line(shlex.split(line))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


MISTAKES = [
    # hosts without a port
    ("dbserver", "`howfar dbserver:3306` (MySQL)"),
    ("dbserver", "`howfar servers`"),
    ("db1", "`howfar db1:3306` (MySQL)"),
    ("sqlprod", ":5432 (PostgreSQL)"),
    ("zeus", ":6379 (Redis)"),
    # plans
    ("run path", "Did you mean paths?"),
    ("run lateny", "Did you mean latency?"),
    ("run Paths", "Did you mean paths?"),
    ("run paths postgresql", "--server postgresql"),
    ("run paths postgres", "--server postgresql"),
    ("run paths latency", "One plan a run"),
    ("run mysql://root@127.0.0.1/test", "howfar load TARGET"),
    ("run 127.0.0.1:3306", TARGET),
    ("run --server postgres --time-budget 1s", "Did you mean postgresql?"),
    ("run --server maria", "Did you mean mariadb?"),
    ("run nope.toml", "howfar plans"),
    ("plans latenc", "Did you mean latency?"),
    # commands
    ("paths", "`howfar run paths`"),
    ("pahts", "`howfar run paths`"),
    ("bandwidth", "`howfar run bandwidth`"),
    ("latency", "`howfar run latency`"),
    ("latency", TARGET),
    ("plan latency", "`howfar plans NAME`"),
    ("show f", "`howfar report FILE`"),
    ("html f", "`howfar report FILE`"),
    ("ping db", TARGET),
    ("distance db", TARGET),
    ("connect mysql://u@h", TARGET),
    ("db", TARGET),
    ("mysql", TARGET),
    ("postgres", "--server postgresql"),
    ("reprot f", "`howfar report`"),
    ("docter", "`howfar doctor`"),
    ("sysbench", "`howfar load"),
    ("pgbench", "`howfar load"),
    ("benchmark", "`howfar load"),
    ("continue f", "`howfar resume FILE`"),
    ("diff a b", "`howfar compare BEFORE AFTER`"),
    ("install mysql", "`howfar servers get NAME`"),
    ("watch", "`howfar --watch TARGET`"),
    ("list", "`howfar plans`"),
    ("servers install", "`howfar servers get NAME`"),
    ("servers ls", "`howfar servers list`"),
    ("servers postgres", "`howfar servers postgresql`"),
    ("servers get postgres", "howfar setup --postgresql"),
    ("hosts start", "`howfar hosts up`"),
    ("hosts list", "`howfar hosts show`"),
    ("bench load", "`howfar load"),
    ("help rnu", "`howfar run`"),
    ("links us-coast", "Did you mean us-coasts?"),
    ("TARGET", "stands for the address"),
    ("own.toml", "`howfar run own.toml`"),
    ("run.howfar", "`howfar report run.howfar`"),
    ("--json paths", "`howfar run paths`"),
    ("--json run", "`howfar run …`"),
    ("-v", "--version"),
    ("--host db", "mysql://USER@HOST:PORT/DATABASE"),
    ("--password x db:3306", PASSWORD),
    ("db:3306 -n 5", "--count"),
    ("db:3306 --format json", "--json"),
    ("db:3306 --fail-at 5ms", "--fail-if"),
    # options
    ("run --duration 30s", "--time-budget"),
    ("run --time 30s", "--time-budget"),
    ("run --json", "`howfar report FILE`"),
    ("run --rtts 5ms", "--rtt"),
    ("run --latency 5ms", "--rtt"),
    ("run --bandwidth 1gbit", "--rate"),
    ("run --connections 4", "--threads"),
    ("run -o x.howfar", "--out"),
    ("run --output x.howfar", "--out"),
    ("run --tls", "`howfar run encryption`"),
    ("resume f --duration 5m", "--time-budget"),
    ("resume f --full", "`howfar run NAME`"),
    ("report f -o x", "--html=FILE"),
    ("report f --output x", "--html=FILE"),
    ("report f --format json", "--json"),
    ("report f json", "--json"),
    ("doctor --host db", "`howfar doctor TARGET`"),
    ("doctor --password x", PASSWORD),
    ("slope --duration 5s -- true", "--time-budget"),
    ("slope --host db -- true", "--server"),
    ("record --duration 5s -- true", "--time"),
    ("predict f --latency 5ms", "--rtt"),
    ("predict f 5ms", "--rtt 5ms"),
    ("lab --delay 5ms -- true", "--rtt"),
    ("lab --link us-coast -- true", "Did you mean us-coasts?"),
    # values and quantities
    ("run paths --rtt 5 ms", "--rtt 5ms"),
    ("run paths --rtt=5 ms", "--rtt 5ms"),
    ("run --time-budget 5 m", "--time-budget 5m"),
    ("run --rate 1 Gbps", "--rate 1Gbps"),
    ("run paths --threads 1,4", "threads = [1, 4]"),
    ("run --rtt 5", "10ms"),
    ("run --rate 100MB/s", "in bits"),
    ("run latency --load 50", "such as 50%"),
    ("run --placement machine", "Did you mean machines?"),
    ("run --idle poll", "Did you mean polling?"),
    # loads
    ("load --host h oltp_read_only", "--mysql-host"),
    ("load --host h tpcb-like", "--pgsql-host"),
    ("load postgresql://h/d --port 5 oltp_read_only", "--pgsql-port"),
    ("load -h db oltp_read_only", "--mysql-host"),
    ("load mysql://u@h/d tpcb", "tpcb-like"),
    ("load mysql://u@h/d oltp_readonly", "oltp_read_only"),
    ("load --duration=5 oltp_read_only", "--time"),
    ("load --concurrency 4 oltp_read_only", "--threads"),
    ("load --mysql-passwd=x oltp_read_only", PASSWORD),  # [cli-2]
    ("load --password=x oltp_read_only", PASSWORD),
    ("load -t 100 -c 4 tpcb-like", "--events"),
    ("load -f my.sql", "--workload FILE.toml"),
    ("load --test=oltp", "oltp_read_only"),
    ("load --fail-if 'p99<5ms' oltp_read_only", "--search"),
    ("load mysql://u@h/d ./my.lua", "--workload"),
    ("load --time 5 s oltp_read_only", "--time 5s"),
]


@pytest.mark.parametrize(
    ("line", "instead"), MISTAKES, ids=[f"{line}-{number}" for number, (line, _) in enumerate(MISTAKES)]
)
def test_a_plausible_mistake_is_told_what_to_type(howfar: Howfar, line: str, instead: str) -> None:
    skip_without(*({"bandwidth", "latency"} & set(f"{line} {instead}".replace("?", "").split())))
    code, out, err = howfar(line)
    assert code in (2, 3), err
    assert (json.loads(out)["exit_code"] == code) if "--json" in line.split() else out == ""
    assert instead in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("line", "never"),
    [
        ("run --duration 30s", ("--durability", "--rate")),
        ("run --json", ("--dsn", "--on")),
        ("load --host h oltp_read_only", ("--pgsql-host",)),
        ("load --duration=5", ("--rate",)),
        ("load --mysql-passwd=secret x", ("--mysql-password", "secret")),  # [cli-2]
        ("load -psecret oltp_read_only", ("secret",)),
        ("run mysql://u:secret@h/d", ("secret",)),
        ("run latency --load 50", ("closed,50",)),
        ("run --rate 5Gxx", ("5gxx",)),
        ("load --jobs=x select-only", ("--json",)),
        ("load --initialise", ("--table-size",)),
        ("load --filee=x", ("--dialect",)),
        ("db:3306 --frobnicate", ("Did you mean",)),
    ],
)
def test_nothing_misleads(howfar: Howfar, line: str, never: tuple[str, ...]) -> None:
    err = howfar(line)[2]
    assert err
    assert [word for word in never if word in err] == []


def test_every_suggested_option_is_one_that_the_command_takes() -> None:
    """[cli-2]"""
    context = click.Context(cli)
    for name, table in OPTIONS.items():
        command = cli.get_command(context, name or "TARGET")
        assert command is not None, name
        options = [
            word for param in command.get_params(context) if isinstance(param, click.Option) for word in param.opts
        ]
        assert {
            word: meant for word, meant in table.items() if word in options or not is_accepted(meant, options)
        } == {}


def test_every_suggested_command_is_one() -> None:
    context = click.Context(cli)
    known = {*cli.list_commands(context), "TARGET", "HOST:3306", "mysql://user@host/db", "--watch", "--json"}
    tables = [COMMANDS, *SUBCOMMANDS.values(), *OPTIONS.values()]
    named = [first for table in tables for meant in table.values() for first in re.findall(r"`howfar ([^\s`]+)", meant)]
    assert named and set(named) <= known, set(named) - known
    for group, table in SUBCOMMANDS.items():
        found = cli.get_command(context, group)
        assert isinstance(found, click.Group)
        inner = [word for meant in table.values() for word in re.findall(rf"`howfar {group} (\w+)", meant)]
        assert set(inner) <= set(found.list_commands(context))


PGBENCH = [
    ("-c 4", {"threads": 4}),
    ("--client=4", {"threads": 4}),
    ("-j2", {"engine-threads": 2}),
    ("--jobs 2", {"engine-threads": 2}),
    ("-T 5", {"time": 5 * 10**9}),
    ("-R 500", {"rate": 500.0}),
    ("-s 10", {"scale": 10}),
    ("-P 1", {"report-interval": 10**9}),
    ("--progress=1", {"report-interval": 10**9}),
    ("-M simple", {"db-ps-mode": "disable"}),
    ("-M prepared", {"db-ps-mode": "auto"}),
    ("--protocol=extended", {"db-ps-mode": "extended"}),
    ("-C", {"connect": "per-transaction"}),
    ("--connect", {"connect": "per-transaction"}),
    ("--connect persistent", {"connect": "persistent"}),
    ("-r", {}),
    ("--report-per-command", {}),
    ("-n", {}),
]


@pytest.mark.parametrize(("words", "values"), PGBENCH)
def test_options_of_pgbench_with_an_equal_are_taken(words: str, values: dict[str, object]) -> None:
    """[cli-3]"""
    found = parse_command_line([*words.split(), "select-only"])
    assert (dict(found.values), found.kind, found.action) == (values, "select_only", "run")


@pytest.mark.parametrize(
    ("words", "kind", "action"),
    [
        ("-S", "select_only", "run"),
        ("-N", "simple_update", "run"),
        ("-SC", "select_only", "run"),
        ("-b tpcb-like", "tpcb_like", "run"),
        ("--builtin=select-only", "select_only", "run"),
        ("-i tpcb-like", "tpcb_like", "prepare"),
        ("--initialize tpcb-like", "tpcb_like", "prepare"),
    ],
)
def test_workloads_of_pgbench_are_named_as_there(words: str, kind: str, action: str) -> None:
    """[cli-3]"""
    found = parse_command_line(words.split())
    assert (found.kind, found.action) == (kind, action)


def test_what_stands_for_a_foreign_option_is_known() -> None:
    """[cli-2], [cli-3]"""
    for give in PGBENCH_VALUE_OPTIONS.values():
        for value in ("1", "simple", "tpcb-like"):
            try:
                (word,) = give(value)
            except UsageError:
                continue
            assert not word.startswith("--") or word[2:].partition("=")[0] in BY_NAME
    for words in PGBENCH_SWITCHES.values():
        names = [word.partition("=")[0].removeprefix("--") for word in words]
        assert all(name in BY_NAME or name.replace("-", "_") in (*KINDS, *ACTIONS) for name in names)
    accepted_here = {name for name, option in BY_NAME.items() if option.treatment == "used"}
    for near in ALTERNATIVES.values():
        assert set(re.findall(r"--([a-z][a-z-]*)", near)) <= accepted_here, near
    assert translate("oltp_read_only", []) is None and translate("--threads=4", []) is None
    assert "secret" not in str(unknown_option_error("-p", ["-psecret"]))


@pytest.mark.parametrize(
    "word", ["localhost", "db.internal", "h:1", "/run/x.sock", "u@h", "host=h", "mysql://u@h/d", "[::1]:5"]
)
def test_a_target(word: str) -> None:
    assert looks_like_target(word)


@pytest.mark.parametrize("word", ["db", "run", "paths", "--json", "--env=X", "-h", ""])
def test_no_target(word: str) -> None:
    assert not looks_like_target(word)


@pytest.mark.parametrize(
    "line",
    ["mysql://u@h/d", "db.internal:3306", "localhost", "/run/m.sock", "--env DATABASE_URL", "", "--json db:1", "db:1 --watch",
     "--watch db:3306 --count 5", "'host=h dbname=d'", "--fail-if 'p95>2ms' --interval 1s u@tcp(h:3306)/d"],
)  # fmt: skip
def test_a_target_is_asked_without_a_command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from howfar.cli.distance import distance

    asked: list[dict[str, object]] = []
    monkeypatch.setattr(distance, "callback", lambda **values: asked.append(values))
    assert run_command_line(shlex.split(line.replace("(", r"\(").replace(")", r"\)"))) == 0
    assert len(asked) == 1


def test_a_file_or_directory_is_no_server(howfar: Howfar, tmp_path: Path) -> None:
    Path("my.cnf").write_text("[client]\n")
    Path("empty").mkdir()
    for target in ("my.cnf", "./my.cnf", str(tmp_path / "notarun"), "doctor ./my.cnf"):
        code, _, err = howfar(target)
        assert code == 2 and "is a file" in err and "--defaults-file" in err, err
    code, _, err = howfar("./empty")
    assert code == 2 and "is a directory" in err, err


@pytest.mark.parametrize("line", ["--prometheus - --json db:3306", "run --out -", "run --html -", "report f --html=-",
                                  "record --out - -- true", "load --prometheus=- oltp_read_only"])  # fmt: skip
def test_no_file_is_called_like_standard_output(howfar: Howfar, line: str) -> None:
    code, _, err = howfar(line)
    assert code in (2, 6) and "standard output" in err, err
    assert not Path("-").exists()


@pytest.mark.parametrize("line", ["''", "--json ''"])
def test_an_empty_target_is_called_empty(howfar: Howfar, line: str) -> None:
    code, _, err = howfar(line)
    assert code == 2 and "empty" in err, err


def test_options_of_the_mysql_client_get_a_target(howfar: Howfar) -> None:
    code, out, err = howfar("-h 127.0.0.1 -P 13306 -u app -psecretpw")
    assert (code, out) == (2, "") and "mysql://USER@HOST:PORT" in err and "secretpw" not in err


def test_an_interval_may_be_seconds_without_a_unit() -> None:
    assert SECONDS.convert("0.1", None, None) == 100_000_000
    with pytest.raises(click.UsageError):
        DURATION.convert("0.1", None, None)
