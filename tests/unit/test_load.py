"""How a server and a load are described: DSNs, libpq's forms, searches, workloads, and the verdict."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit import fake_load
from tests.unit.rendered import is_short
from tests.unit.test_other_programs import BUSY, CARGO

from howfar.address import SYSTEM_CA, Secret, ServerAddress, parse
from howfar.address.libpq import SOCKET_DIRECTORY, complete, find_password, parse_service
from howfar.cli.load import find_login
from howfar.contract.messages import (
    Account,
    Classes,
    Custom,
    Failed,
    Interval,
    Lost,
    Pgbench,
    Sysbench,
)
from howfar.errors import PlanError, UsageError
from howfar.load.cmdline import parse_command_line
from howfar.load.conclusion import conclude_search
from howfar.load.job import (
    address_from_options,
    build_load_job,
    build_workload,
    check_values,
    count_values,
    example_workload,
    example_workloads,
    limit_advice,
    parse_workload,
)
from howfar.load.report_text import bucket_index, document, value_ms
from howfar.load.result import make_value_counts, percentile_bounds
from howfar.load.search import (
    CONFIRMATIONS,
    MAX_GAP_RATIO,
    MAX_TRIALS,
    Goal,
    RateTrial,
    next_rate,
    parse_goal,
    summarize_search,
)
from howfar.load.verdict import LoadVerdict, Stamp, StampFinding, judge, missing_rows
from howfar.other_programs import MAX_QUIET_SHARE, busiest
from howfar.report.terminal import render
from howfar.services import SqlProtocol


def test_sources_are_combined(tmp_path: Path) -> None:
    file = tmp_path / "my.cnf"
    file.write_text("[client]\nsocket=/file.sock\nuser=of-file\nssl-cipher=X\nhost=localhost\n")

    def found(*arguments: str) -> ServerAddress:
        return find_login(parse_command_line([*arguments, "oltp_read_only"]), lambda _: None, {}).address

    named = found("mysql://127.0.0.1", f"--defaults-file={file}")
    assert (named.host, named.port, named.socket, named.user) == ("127.0.0.1", 3306, None, "of-file")
    assert (named.database, named.ssl_cipher, named.ssl_mode) == ("sbtest", "X", "REQUIRED")
    assert found(f"--defaults-file={file}").socket == "/file.sock"
    wins = found("--mysql-host=127.0.0.1", "--mysql-port=3", "--mysql-socket=/s")
    assert (wins.host, wins.socket) == (None, "/s"), "sysbench: the socket wins"
    plain = found()
    assert plain == ServerAddress(protocol="mysql", host="localhost", port=3306, user="sbtest", database="sbtest")
    with pytest.raises(UsageError, match="by a DSN and by"):
        found("mysql://127.0.0.1", "--mysql-user=u")


# ---------------------------------------------------------------- libpq


def _completed(text: str, root_cert: str | None = None) -> ServerAddress:
    return complete(parse(text).address, "me", root_cert)


def test_defaults_are_those_of_libpq() -> None:
    bare = _completed("postgresql://")
    assert (bare.socket, bare.user, bare.database) == (f"{SOCKET_DIRECTORY}/.s.PGSQL.5432", "me", "me")
    named = _completed("postgresql://u@h")
    assert (named.host, named.port, named.database) == ("h", 5432, "u")
    assert _completed("postgresql:///?host=/run/pg/&port=7").socket == "/run/pg/.s.PGSQL.7"
    assert _completed("postgresql://?hostaddr=::1").host == "::1"


def test_certificates_are_found_as_libpq_finds_them() -> None:
    assert _completed("postgresql://h?sslmode=require&sslrootcert=c").ssl_mode == "VERIFY_CA"
    assert _completed("postgresql://h?sslmode=verify-full", "own").ssl_ca == "own"
    found = _completed("postgresql://h?sslmode=require", "own")
    assert (found.ssl_mode, found.ssl_ca) == ("VERIFY_CA", "own"), "as libpq does, where the file is there"
    assert _completed("postgresql://h?sslmode=require").ssl_mode == "REQUIRED"
    system = _completed("postgresql://h?sslrootcert=system")
    assert (system.ssl_ca, system.ssl_mode) == (SYSTEM_CA, "VERIFY_IDENTITY")
    with pytest.raises(UsageError, match="many authorities"):
        _completed("postgresql://h?sslrootcert=system&sslmode=require")
    with pytest.raises(UsageError, match="needs the CA"):
        _completed("postgresql://h?sslmode=verify-ca")
    with pytest.raises(UsageError, match="direct"):
        _completed("postgresql://h?sslnegotiation=direct")


SERVICES = "# mine\n[one]\nhost=h\nport=7\n[two]\ndbname=d\npassword=secret\n[three]\nldap://x\n[four]\nno pair\n"


def test_a_service_is_one_group_of_its_file() -> None:
    one, two = parse_service("f", SERVICES, "one"), parse_service("f", SERVICES, "two")
    assert one is not None and one.address == ServerAddress(protocol="postgresql", host="h", port=7)
    assert two is not None and (two.address.database, two.password) == ("d", Secret("secret"))
    assert parse_service("f", SERVICES, "five") is None
    with pytest.raises(UsageError, match="LDAP"):
        parse_service("f", SERVICES, "three")
    with pytest.raises(UsageError, match="f:11 is not NAME=VALUE"):
        parse_service("f", SERVICES, "four")


def test_the_first_fitting_line_has_the_password() -> None:
    text = "# h:5432:d:u:no\nother:*:*:*:no\nh:5432:d:u:a\\:b\\\\c\n*:*:*:*:any\n/run/pg:7:*:*:by socket\nlocalhost:*:*:*:x\n"
    assert find_password(text, _completed("postgresql://u@h/d")) == Secret("a:b\\c")
    assert find_password(text, _completed("postgresql://u@h2/d")) == Secret("any")
    by_socket = "/run/pg:7:*:*:by socket\nlocalhost:*:*:*:by default\n"
    assert find_password(by_socket, _completed("postgresql://?host=/run/pg&port=7")) == Secret("by socket")
    assert find_password(by_socket, _completed("postgresql://")) == Secret("by default")
    assert find_password(by_socket, _completed("postgresql://h")) is None


def test_sources_are_joined_in_the_order_of_libpq(tmp_path: Path) -> None:
    (tmp_path / ".pg_service.conf").write_text("[s]\nuser=of_service\ndbname=of_service\n")
    passfile = tmp_path / ".pgpass"
    passfile.write_text("127.0.0.1:7:of_service:of_uri:secret\n")
    passfile.chmod(0o600)
    environment = {"HOME": str(tmp_path), "PGPORT": "7", "PGUSER": "of_env", "PGHOST": "/nowhere"}
    options = parse_command_line(["postgresql://of_uri@127.0.0.1?service=s", "tpcb-like", "--scale=3", "--pipeline=7"])
    login = find_login(options, lambda _: None, environment)
    job = build_load_job(options, login, build_workload(options, None), 1)
    assert (job.protocol, job.user, job.database, job.password) == ("postgresql", "of_uri", "of_service", "secret")
    assert job.target.model_dump() == {"kind": "tcp", "host": "127.0.0.1", "port": 7}
    assert job.workload.model_dump() == {"kind": "tpcb_like", "scale": 3, "db_ps_mode": "auto"}
    assert (job.session.pipeline, job.session.tls) == (7, None)
    bare = find_login(parse_command_line(["postgresql://127.0.0.1", "tpcb-like"]), lambda _: None, {"HOME": "/none"})
    assert bare.address.user == bare.address.database != "sbtest", "the defaults of sysbench are for its own options"
    passfile.chmod(0o644)
    assert find_login(options, lambda _: None, environment).password == Secret()
    with pytest.raises(UsageError, match="not in any service file"):
        find_login(options, lambda _: None, environment | {"PGSERVICEFILE": "/none", "HOME": "/none"})


def test_sysbenchs_own_options_name_a_server_too() -> None:
    arguments = ["oltp_read_only", "--db-driver=pgsql", "--pgsql-host=/run/pg", "--pgsql-sslmode=disable"]
    options = parse_command_line(arguments)
    login = find_login(options, lambda _: None, {"HOME": "/none"})
    job = build_load_job(options, login, build_workload(options, None), 1)
    assert (job.protocol, job.user, job.database) == ("postgresql", "sbtest", "sbtest")
    assert job.target.model_dump() == {"kind": "unix", "path": "/run/pg/.s.PGSQL.5432"}
    with pytest.raises(UsageError, match="ports are 1 to 65535"):
        address_from_options(parse_command_line([*arguments, "--pgsql-port=70000"]))


# ---------------------------------------------------------------- the search for a rate


GOAL = Goal(0.99, 5_000_000)


def run(holds: Callable[[float, int], bool], low: float = 100, high: float | None = None) -> list[RateTrial]:
    """The trials of a search; `holds(rate, number of the trial)`."""
    trials: list[RateTrial] = []
    while (rate := next_rate(trials, low, high)) is not None:
        trials.append(RateTrial(rate, 1, False, "" if holds(rate, len(trials)) else "5 ms"))
        assert len(trials) <= MAX_TRIALS
    return trials


@given(st.floats(10, 500_000), st.floats(1, 5_000))
def test_a_sharp_limit_is_found_within_the_stated_gap(limit: float, low: float) -> None:
    trials = run(lambda rate, _: rate <= limit, low)
    found = summarize_search(trials)
    if limit < low / 64 or limit < 1:
        assert found.kind in ("below", "found")
        return
    if found.kind == "below":
        assert found.failed_at is not None and found.failed_at > limit
        return
    assert found.kind in ("found", "unclear")
    assert found.rate is not None and found.rate <= limit
    assert found.failed_at is not None and found.failed_at > limit
    if found.kind == "found":
        assert found.failed_at / found.rate <= MAX_GAP_RATIO
        assert found.repeats == CONFIRMATIONS + 1


@given(st.floats(100, 100_000), st.randoms(use_true_random=False))
def test_whatever_the_trials_say_the_search_ends_and_contradicts_none(limit: float, random: object) -> None:
    chance = getattr(random, "random")  # noqa: B009 - hypothesis gives a Random
    trials = run(lambda rate, _: chance() < 1 / (1 + (rate / limit) ** 8))
    found = summarize_search(trials)
    assert found.trials == len(trials) <= MAX_TRIALS
    if found.rate is not None:
        assert all(trial.met_goal for trial in trials if trial.rate == found.rate)
        assert found.failed_at is None or found.failed_at > found.rate
    sentence = conclude_search(GOAL, found, is_client_limited=True).answer.sentence
    is_short(sentence)


def test_a_cap_that_holds_is_a_lower_bound_and_says_so() -> None:
    found = summarize_search(run(lambda rate, _: True, low=100, high=1000))
    assert (found.kind, found.rate, found.repeats) == ("at_least", 1000, CONFIRMATIONS + 1)


def test_without_a_cap_what_never_fails_ends_too() -> None:
    found = summarize_search(run(lambda rate, _: True))
    assert found.kind == "at_least" and found.trials == MAX_TRIALS


def test_nothing_holds() -> None:
    found = summarize_search(run(lambda rate, _: False))
    assert (found.kind, found.rate) == ("below", None)
    assert conclude_search(GOAL, found, is_client_limited=False).answer.findings[0].id == "below"


def test_a_lucky_best_is_not_the_answer() -> None:
    """The rate 1600 holds only the first time."""
    trials = run(lambda rate, number: rate <= 1000 or (rate == 1600 and number < 6))
    found = summarize_search(trials)
    assert found.rate is not None and found.rate <= 1000


@pytest.mark.parametrize(
    ("text", "goal"),
    [("p99<5ms", Goal(0.99, 5_000_000)), ("p99.9 < 1s", Goal(0.999, 10**9)), ("max<250us", Goal(1.0, 250_000)),
     ("p50<1ms", Goal(0.5, 10**6))],
)  # fmt: skip
def test_goals(text: str, goal: Goal) -> None:
    assert parse_goal(text) == goal
    assert str(parse_goal(str(goal).replace(" ", ""))) == str(goal)


@pytest.mark.parametrize("text", ["p99", "p99<5", "p99>5ms", "p0<5ms", "p99<0ms", "mean<5ms", "p100<1ms"])
def test_goals_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_goal(text)


# ---------------------------------------------------------------- workloads in toml


GOOD = """\
prepare = ["CREATE TABLE t (id INT)"]

[[statements]]
name = "one"
sql = \"\"\"
SELECT ?
name = 1
\"\"\"
parameters = [{ kind = "text", length = "1KiB", compressible = "50%" }]

[[statements]]
name = "two"
sql = "SELECT ?"
parameters = [
    { kind = "integer", high = 10, distribution = "zipfian" },
]

[[transactions]]
name = "t"

[[transactions.steps]]
statement = "one"
think = "5ms"

[[transactions]]
name = "u"

[[transactions.steps]]
statement = "two"

[[transactions.steps]]
statement = "one"
repeat = 2
"""


def test_quantities_have_units() -> None:
    found = parse_workload("w.toml", GOOD)
    assert isinstance(found, Custom)
    text = found.statements[0].parameters[0].model_dump()
    assert (text["length"], text["compressible"]) == (1024, 0.5)
    assert found.statements[1].parameters[0].model_dump()["distribution"]["kind"] == "zipfian"
    assert found.transactions[0].steps[0].think_ns == 5_000_000
    assert [step.repeat for step in found.transactions[1].steps] == [1, 2]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('think = "5ms"', "think = 5", "w.toml:23: transactions[1].steps[1].think: 5 has no unit"),
        ('think = "5ms"', 'think = "5 parsecs"', "w.toml:23: transactions[1].steps[1].think: "),
        ("repeat = 2", "repeat = 0", "w.toml:33: transactions[2].steps[2].repeat: "),
        ("repeat = 2", "repaet = 2", "w.toml:33: transactions[2].steps[2].repaet: unknown key"),
        ('name = "two"', 'name = "Two Words"', "w.toml:12: statements[2].name: "),
        ('sql = "SELECT ?"', "", "w.toml:11: statements[2].sql: is missing"),
        ('kind = "integer"', 'kind = "integre"', "w.toml:14: statements[2].parameters[1]: "),
        ("[[transactions]]\nname = \"t\"", "[[transactions]\nname = \"t\"", "w.toml:18: malformed TOML"),
    ],
)  # fmt: skip
def test_an_error_names_its_line(before: str, after: str, expected: str) -> None:
    assert before in GOOD
    with pytest.raises(PlanError, match=re.escape(expected)) as caught:
        parse_workload("w.toml", GOOD.replace(before, after, 1))
    assert caught.value.advice


def value_cases() -> Iterator[Any]:
    """Cases from the table with which the engine's lexer is tested too."""
    path = Path(__file__).parents[1] / "data" / "values.tsv"
    for server, values, sql in (line.split("\t") for line in path.read_text().splitlines()[1:]):
        for protocol in ("mysql", "postgresql") if server == "both" else (server,):
            yield pytest.param(protocol, int(values), sql.replace("⏎", "\n"), id=f"load-14-{protocol}-{sql}")


@pytest.mark.parametrize(("protocol", "values", "sql"), list(value_cases()))
def test_values_are_counted_by_the_rules_of_the_server(protocol: SqlProtocol, values: int, sql: str) -> None:
    assert count_values(sql, protocol) == values


def test_as_many_marks_as_parameters() -> None:
    """A mismatch is refused here, with file and statement, and not by the engine."""
    text = GOOD.replace('sql = "SELECT ?"', 'sql = "SELECT ?, ?"')
    message = "w.toml:13: statements[2].sql: statement two has 2 `?` and 1 parameter"
    with pytest.raises(PlanError, match=re.escape(message)):
        check_values("w.toml", text, parse_workload("w.toml", text), "mysql")
    check_values("w.toml", GOOD, parse_workload("w.toml", GOOD), "mysql")


@pytest.mark.parametrize("name", example_workloads())
def test_what_comes_along_is_a_workload(name: str) -> None:
    found = parse_workload(name, example_workload(name))
    assert found.prepare and found.cleanup


# ---------------------------------------------------------------- stamps and their figures; percentiles with unanswered requests


RATES = [100, 101, 99, 100, 102, 98, 100, 101, 99, 100]


def slices(rates: list[int], p50_ns: list[int] | None = None) -> list[Interval]:
    return [
        fake_load.interval(number, rate, p50_ns[number] if p50_ns else 2_000_000) for number, rate in enumerate(rates)
    ]


def one(verdict: LoadVerdict) -> StampFinding:
    assert len(verdict.findings) == 1, verdict
    return verdict.findings[0]


def test_client_limited_by_a_busy_thread() -> None:
    found = one(judge(fake_load.finished(busiest_thread_ns=8_600_000_000), slices(RATES)))
    assert (found.stamp, "86%" in found.because) == (Stamp.CLIENT_LIMITED, True)
    assert judge(fake_load.finished(busiest_thread_ns=8_400_000_000), slices(RATES)).stamps == (Stamp.VALID,)


def test_client_limited_by_waiting_for_a_cpu() -> None:
    """Three threads, one of which only coordinates, over ten seconds: 2 % of the window per thread are 0.4 s."""
    found = one(judge(fake_load.finished(threads=3, cpu_ns=3_600_000_000, runnable_wait_ns=500_000_000), slices(RATES)))
    assert (found.stamp, "12% of the time" in found.because) == (Stamp.CLIENT_LIMITED, True)
    assert "each thread for 2.5% of the window" in found.because
    hardly = fake_load.finished(threads=3, cpu_ns=100_000_000, runnable_wait_ns=390_000_000)
    assert judge(hardly, slices(RATES)).stamps == (Stamp.VALID,), "nearly idle: what it waited is nothing to the window"
    busy = fake_load.finished(threads=3, cpu_ns=9_000_000_000, runnable_wait_ns=900_000_000)
    assert judge(busy, slices(RATES)).stamps == (Stamp.VALID,), "9 % of the time in which it had work"


def test_disturbed_by_other_programs() -> None:
    found = one(judge(fake_load.finished(), slices(RATES), programs=BUSY))
    assert (found.stamp, found.because) == (Stamp.DISTURBED, f"{busiest(BUSY)} meanwhile")
    assert "cargo (pid 4711)" in found.advice
    hardly = (CARGO.model_copy(update={"cpus": MAX_QUIET_SHARE * (os.cpu_count() or 1)}),)
    for quiet in (hardly, ()):
        assert judge(fake_load.finished(), slices(RATES), programs=quiet).stamps == (Stamp.VALID,)
    unseen = judge(fake_load.finished(), slices(RATES), programs=None)
    assert list(unseen.unknown) == [Stamp.DISTURBED] and not unseen.findings


def test_failing_when_nothing_ended_or_errors_were_many() -> None:
    nothing = fake_load.finished().model_copy(update={"transactions": 0, "queries": 0, "errors": {"1062": 94_001}})
    account = Account(due=1000, answered=0, unanswered=1000, failed=0, backlog_max=998)
    verdict = judge(nothing, slices([0] * 10))
    assert (one(verdict).stamp, "94,001 x 1062" in one(verdict).because) == (Stamp.FAILING, True)
    assert "no transaction ended" in one(verdict).because
    overrun = judge(nothing.model_copy(update={"open_loop": account}), slices([0] * 10))
    assert overrun.stamps[:2] == (Stamp.FAILING, Stamp.OVERLOADED)
    for errors, stamp in ((200, Stamp.VALID), (201, Stamp.FAILING)):
        done = fake_load.finished().model_copy(update={"errors": {"1213": errors, "disconnect": 10}})
        assert judge(done, slices(RATES)).stamps == (stamp,), (
            "1 % of 20,000 queries; lost connections are not ignored errors"
        )


def test_failing_when_connections_were_lost() -> None:
    """More than 1 % of 1000 transactions; or one connection that was not reopened, however few were lost."""
    for lost, stamp in ((10, Stamp.VALID), (11, Stamp.FAILING)):
        done = fake_load.finished().model_copy(update={"errors": {"disconnect": lost}, "reconnects": lost})
        assert judge(done, slices(RATES)).stamps == (stamp,)
    last = Failed(code="connect", message="connecting to h:5432 failed: Connection refused", advice="Start the server.")
    away = {"errors": {"disconnect": 1}, "lost": Lost(at_end=1, last=last)}
    found = fake_load.result(done=fake_load.finished().model_copy(update=away))
    assert "1 of 2 connections were not open when the window ended" in one(found.verdict).because
    shown = render(document(found, "oltp_read_only"), 132)
    assert "1 x disconnect (connection lost)" in shown and "Connection refused" in shown
    assert "reconnect" not in shown, "nothing came back"


@pytest.mark.parametrize(
    ("workload", "found", "missed"),
    [
        (Pgbench(kind="tpcb_like", scale=9), {"read": 1000, "write": 4000, "other": 2000, "rows": 1000}, ""),
        (
            Pgbench(kind="tpcb_like", scale=9),
            {"read": 1000, "write": 1333, "other": 4667, "rows": 111},
            "only 11% of the rows that its queries name and 11% of the rows that its changes name were found",
        ),
        (Pgbench(kind="select_only", scale=2), {"read": 1000, "rows": 500}, "smaller than --scale=2 says"),
        (Sysbench(kind="oltp_point_select"), {"read": 1000, "rows": 899}, "only 90% of the rows that its queries name"),
        (Sysbench(kind="oltp_point_select"), {"read": 1000, "rows": 900}, ""),
        (Sysbench(kind="oltp_write_only"), {"write": 4000, "other": 2000}, ""),
        (
            Sysbench(kind="oltp_write_only", table_size=100_000),
            {"write": 1300, "other": 4700},
            "only 10% of the rows that its changes name were found: the tables are smaller than --table-size=100000 says",
        ),
        (Sysbench(kind="oltp_read_only"), {"read": 14_000, "other": 2000, "rows": 310_000}, ""),
        (Sysbench(kind="oltp_read_only"), {"read": 14_000, "other": 2000, "rows": 31_000}, "10% of the rows"),
        # A table no longer than a range: on average half of it lies after the beginning of a range.
        (Sysbench(kind="oltp_read_only", table_size=100), {"read": 14_000, "other": 2000, "rows": 161_000}, ""),
        (Sysbench(kind="oltp_delete"), {"other": 1000}, ""),
        (Sysbench(kind="oltp_insert"), {"write": 1000}, ""),
    ],
)
def test_failing_when_rows_are_missing(workload: Pgbench | Sysbench, found: dict[str, int], missed: str) -> None:
    """As with tables that were prepared smaller than the options say."""
    counts = {"read": 0, "write": 0, "other": 0} | found
    rows = counts.pop("rows", 0)
    done = fake_load.finished().model_copy(update={"classes": Classes(**counts), "rows": rows, "errors": {}})
    assert missed in missing_rows(workload, done) and bool(missed) == bool(missing_rows(workload, done))
    assert judge(done, slices(RATES), workload=workload).stamps == ((Stamp.FAILING,) if missed else (Stamp.VALID,))


def test_a_stall_of_an_open_loop() -> None:
    account = Account(due=1000, answered=1000, unanswered=0, failed=0, backlog_max=300)

    def seen(counts: list[int], burst: int = 1) -> tuple[Stamp, ...]:
        done = fake_load.finished(account=account)
        return judge(done, slices(counts), lateness_p99_ns=1, service_p50_ns=1, burst=burst).stamps

    assert seen([54, 39, 0, 0, 0, 0, 0, 319, 61]) == (Stamp.NOT_STEADY,), "most intervals stood still"
    assert seen([54, 39, 60, 58, 0, 0, 190, 61, 57]) == (Stamp.NOT_STEADY,)
    assert seen([3, 5, 1, 4, 6, 2, 1, 4, 5]) == (Stamp.VALID,), "so few vary as much by chance"
    assert seen([100, 100, 0, 100, 100, 0, 100, 100], burst=100) == (Stamp.VALID,), "a burst is due at once"


def test_a_long_transaction_in_flight_is_not_steady() -> None:
    def seen(longest_ns: int, p99_ns: int) -> LoadVerdict:
        return judge(fake_load.finished(), slices(RATES), answered_p99_ns=p99_ns, in_flight_max_ns=longest_ns)

    found = one(seen(2_000_000_000, 10_000_000))
    assert (found.stamp, "for 2 s, 200 times" in found.because) == (Stamp.NOT_STEADY, True)
    assert seen(99_000_000, 1_000_000).stamps == (Stamp.VALID,), "less than 100 ms"
    assert seen(2_000_000_000, 200_000_000).stamps == (Stamp.VALID,), "10 times, not more"


def test_not_steady_by_drift_and_by_a_stall() -> None:
    drift = one(judge(fake_load.finished(), slices([100, 101, 99, 100, 101, 80, 81, 79, 80, 81])))
    assert (drift.stamp, "-20%" in drift.because) == (Stamp.NOT_STEADY, True)
    stall = one(judge(fake_load.finished(), slices([100, 100, 101, 20, 100, 99, 100, 100])))
    assert (stall.stamp, "1 of 8 intervals" in stall.because) == (Stamp.NOT_STEADY, True)
    noise = [60, 140, 80, 120, 100, 75, 130, 100, 95, 70]
    assert judge(fake_load.finished(), slices(noise)).stamps == (Stamp.VALID,), "noise without drift is no drift"


def test_steadiness_of_an_open_loop_is_that_of_response_times() -> None:
    account = Account(due=1000, answered=1000, unanswered=0, failed=0, backlog_max=3)
    done = fake_load.finished(account=account)
    growing = slices(RATES, [2_000_000 + 300_000 * i for i in range(10)])
    verdict = judge(done, growing, lateness_p99_ns=1, service_p50_ns=1)
    assert (one(verdict).stamp, "response time" in one(verdict).because) == (Stamp.NOT_STEADY, True)


def test_what_cannot_be_judged_is_said_and_is_not_valid_by_default() -> None:
    verdict = judge(fake_load.finished().model_copy(update={"cpu": ()}), slices(RATES[:7]))
    assert [reason.split(":")[0] for reason in verdict.unknown] == ["client-limited", "steadiness"]
    account = Account(due=10, answered=10, unanswered=0, failed=0, backlog_max=0)
    assert any("late" in reason for reason in judge(fake_load.finished(account=account), slices(RATES)).unknown)


def test_late_and_overloaded() -> None:
    account = Account(due=1000, answered=985, unanswered=15, failed=0, backlog_max=20)
    verdict = judge(
        fake_load.finished(account=account), slices(RATES), lateness_p99_ns=1_100_000, service_p50_ns=100_000
    )
    assert verdict.stamps == (Stamp.OVERLOADED, Stamp.LATE)
    assert "15 of 1000" in verdict.findings[0].because
    many = judge(
        fake_load.finished(account=account), slices(RATES), connections=15, lateness_p99_ns=1, service_p50_ns=100_000
    )
    assert many.stamps == (Stamp.VALID,), "each of 15 connections may have one under way"
    slow = judge(
        fake_load.finished(account=account.model_copy(update={"answered": 990, "unanswered": 10})),
        slices(RATES),
        lateness_p99_ns=1_100_000,
        service_p50_ns=20_000_000,
    )
    assert slow.stamps == (Stamp.VALID,), "late by less than a tenth of the service time"


# ---------------------------------------------------------------- censored percentiles


def test_percentiles_of_an_overloaded_load_are_bounds() -> None:
    seen = fake_load.overloaded().transaction
    p50, p99 = seen.percentile(0.5), seen.percentile(0.99)
    assert p50 is not None and p50.exact, "half of all were answered, and faster than any unanswered one"
    assert p50.low_ns == pytest.approx(5_990_000, rel=0.002)
    assert p99 is not None and p99.high_ns is None and not p99.exact
    assert p99.low_ns == pytest.approx(2e9, rel=0.002)
    longest = seen.percentile(1)
    assert longest is not None and not longest.exact


@given(
    st.lists(st.integers(1_000, 10**9), min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(1_000, 10**9), st.integers(0, 10**10)), max_size=20),
    st.floats(0.01, 1),
)
def test_the_bounds_hold_whatever_the_unanswered_would_have_taken(
    answered: list[int], unanswered: list[tuple[int, int]], share: float
) -> None:
    """Each unanswered request has an age and takes some time longer; the true percentile lies within the bounds."""
    ages = sorted(age for age, _ in unanswered)
    seen = make_value_counts([(value, 1) for value in sorted([*answered, *ages])], max([*answered, *ages]))
    alone = make_value_counts([(value, 1) for value in sorted(answered)], max(answered))
    between = percentile_bounds(seen, alone, share)
    assert between is not None
    truth = sorted([*answered, *(age + longer for age, longer in unanswered)])
    rank = max(-int(-(share * len(truth) - 1e-9) // 1), 1)
    assert between.low_ns <= truth[rank - 1]
    assert between.high_ns is None or truth[rank - 1] <= between.high_ns


def test_sysbenchs_buckets() -> None:
    assert [value_ms(bucket_index(ns)) for ns in (417_000, 36_894_000)] == pytest.approx([0.417, 36.894], rel=0.001)
    assert (bucket_index(0), bucket_index(500), bucket_index(10**15)) == (0, 0, 1023)


# ---------------------------------------------------------------- receipts and limits of servers


def test_the_advice_names_the_statement_that_lifts_a_limit() -> None:
    job = fake_load.job(connections=2048, workload=Sysbench(kind="oltp_read_write", tables=10))
    sentence = limit_advice(job, "… error 1461 (42000): Can't create more than max_prepared_stmt_count statements")
    assert sentence is not None
    assert "SET GLOBAL max_prepared_stmt_count = 188416;" in sentence, "2048 x (9 x 10 + BEGIN and COMMIT)"
    sentence = limit_advice(job, "… refused the login: error 1040 (08004): Too many connections")
    assert sentence is not None and "SET GLOBAL max_connections = 2058;" in sentence
    assert limit_advice(job, "error 1146: no such table") is None
