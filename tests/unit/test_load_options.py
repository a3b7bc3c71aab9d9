"""The option table against sysbench's own help, and the jobs that command lines become."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import pytest

from howfar.address import Secret, ServerAddress
from howfar.contract.messages import (
    LoadJob,
    Pgbench,
    Sysbench,
    TcpTarget,
    UnixTarget,
)
from howfar.errors import UsageError
from howfar.load.cmdline import Options, parse_command_line
from howfar.load.job import (
    LoadLogin,
    address_from_options,
    build_load_job,
    build_session,
    build_tables_job,
    build_workload,
    check_sources,
    transport_line,
)
from howfar.load.options import BY_NAME, OPTIONS

SYSBENCH_1_1 = """
threads events time warmup-time forced-shutdown thread-stack-size thread-init-timeout rate report-interval
report-checkpoints debug validate luajit-cmd config-file rand-type rand-seed rand-pareto-h rand-zipfian-exp
verbosity percentile histogram db-driver db-ps-mode db-debug mysql-host mysql-port mysql-socket mysql-user
mysql-password mysql-db mysql-ssl mysql-ssl-key mysql-ssl-ca mysql-ssl-cert mysql-ssl-cipher mysql-compression
mysql-compression-algorithms mysql-debug mysql-ignore-errors mysql-dry-run pgsql-host pgsql-port pgsql-user
pgsql-password pgsql-db pgsql-sslmode table_size range_size tables point_selects simple_ranges sum_ranges
order_ranges distinct_ranges index_updates non_index_updates delete_inserts range_selects auto_inc
create_table_options skip_trx secondary create_secondary reconnect mysql_storage_engine pgsql_variant
random_points number_of_ranges delta
"""
"""Options of the development branch that calls itself 1.1.0."""
NOT_OPTIONS_OF_A_LOAD = {"help", "version"}
HIDDEN = Secret("never-to-be-seen")
SOCKET = LoadLogin(ServerAddress(socket="/s", user="u", database="d"), HIDDEN, target=UnixTarget(path="/s"))
TCP = LoadLogin(
    ServerAddress(host="h", port=3306, user="u", database="d"), HIDDEN, target=TcpTarget(host="192.0.2.1", port=3306)
)


def make_job(*arguments: str, login: LoadLogin = SOCKET) -> LoadJob:
    options = parse_command_line(arguments)
    return build_load_job(options, login, build_workload(options, None), seed=5)


def workload(*arguments: str) -> Sysbench:
    found = make_job(*arguments).workload
    assert isinstance(found, Sysbench)
    return found


@pytest.mark.skipif(shutil.which("sysbench") is None, reason="sysbench is not installed (./setup --tests brings it)")
@pytest.mark.parametrize("arguments", [["--help"], *([kind, "help"] for kind in ("oltp_read_write", "select_random_points",
                                                                             "select_random_ranges", "oltp_insert"))])  # fmt: skip
def test_every_option_of_the_installed_sysbench_is_known_with_its_default(arguments: list[str]) -> None:
    output = subprocess.run(["sysbench", *arguments], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^  --([a-z_-]+)(?:\[=|=| ).*?(?:\[([^\[\]]*)\])?$", output, flags=re.MULTILINE)
    assert len(found) > 15
    for name, default in found:
        if name in NOT_OPTIONS_OF_A_LOAD:
            continue
        option = BY_NAME.get(name.replace("_", "-"))
        assert option is not None, f"sysbench knows --{name}"
        if option.treatment == "used" and not option.same_as and option.default is not None:
            assert option.default == default, name


@pytest.mark.parametrize("name", SYSBENCH_1_1.split())
def test_every_option_of_sysbench_1_1_is_known(name: str) -> None:
    assert name.replace("_", "-") in BY_NAME


def test_the_table_is_consistent() -> None:
    assert len(BY_NAME) == len(OPTIONS), "no option twice"
    for option in OPTIONS:
        assert option.same_as in ("", *BY_NAME)
        assert option.why if option.treatment != "used" else option.help or option.same_as
        for dialect in ("1.0", "1.1"):
            options = Options(None, "oltp_read_only", "run", {"dialect": dialect}, ())
            if option.treatment == "used" and not option.same_as:
                options.value(option.name)  # every default can be read


def test_defaults_are_sysbenchs() -> None:
    assert workload("oltp_read_only") == Sysbench(kind="oltp_read_only")
    job = make_job("oltp_read_write")
    assert (job.connections, job.measure_ns, job.warmup_ns, job.arrivals) == (1, 10_000_000_000, 0, None)
    assert job.ignore_errors == (1213, 1020, 1205)
    assert workload("oltp_read_only", "--dialect=1.1").distribution.kind == "uniform"


@pytest.mark.parametrize(
    ("word", "field", "value"),
    [
        ("--table-size=7", "table_size", 7),
        ("--table_size=7", "table_size", 7),
        ("--skip_trx", "skip_trx", True),
        ("--skip-trx=on", "skip_trx", True),
        ("--auto-inc=off", "auto_inc", False),
        ("--range-selects=false", "range_selects", False),
        ("--secondary=1", "secondary", True),
        ("--create_table_options=x=y", "create_table_options", "x=y"),
        ("--db-ps-mode=disable", "db_ps_mode", "disable"),
    ],
)
def test_forms_of_options(word: str, field: str, value: Any) -> None:
    assert getattr(workload("oltp_read_write", word, "run"), field) == value


def test_a_switch_does_not_take_the_command() -> None:
    options = parse_command_line(["oltp_read_write", "--skip-trx", "prepare"])
    assert (options.action, options.value("skip-trx")) == ("prepare", True)


def test_a_value_may_be_the_next_word() -> None:
    assert make_job("oltp_read_only", "--threads", "8", "run").connections == 8


def test_arguments_in_any_order() -> None:
    options = parse_command_line(["--time=5", "run", "/usr/share/sysbench/oltp_point_select.lua", "mysql://h/d"])
    assert (options.dsn, options.kind, options.action) == ("mysql://h/d", "oltp_point_select", "run")
    assert parse_command_line(["oltp_insert", "prewarm"]).action == "warmup"


@pytest.mark.parametrize(
    ("arguments", "why", "advice"),
    [
        (["oltp_read_only", "--tabels=3"], "unknown option --tabels", "--tables"),
        (["oltp_read_olny"], "is not known", "oltp_read_only"),
        (["run"], "no workload", "oltp_read_only"),
        (["oltp_read_only", "mine.lua"], "Lua script", "TOML"),
        pytest.param(["mysql://h/d", "./oltp_point_select.lua"], "Lua script", "TOML", id="load-13-relative"),
        pytest.param(["mysql://h/d", "/no/such/oltp_read_only.lua"], "Lua script", "TOML", id="load-13-absent"),
        pytest.param(["mysql://h/d", "oltp_insert.lua"], "Lua script", "TOML", id="load-13-here"),
        pytest.param(["mysql://h/d", "share/sysbench/mine.lua"], "Lua script", "TOML", id="load-13-unknown"),
        pytest.param(["mysql://h/d", "/srv/oltp_point_select"], "is not known", "", id="load-13-path"),
        (["oltp_read_only", "--threads=x"], "not a whole number", ""),
        (["oltp_read_only", "--threads=-1"], "less than 1", ""),
        (["oltp_read_only", "--percentile=101"], "--percentile=101 is more than 100", ""),
        (["oltp_read_only", "--time=-1"], "--time=-1 is less than 0 seconds", ""),
        (["oltp_read_only", "--time=x"], "not a duration", "Write seconds"),
        (["oltp_read_only", "--threads"], "needs a value", ""),
        (["oltp_read_only", "--skip-trx=maybe"], "on or off", ""),
        (["oltp_read_only", "--rand-type=normal"], "known: uniform", ""),
        (["oltp_read_only", "--rate=nan"], "not a number", ""),
        (["oltp_read_only", "--ramp=5"], "not a duration", "unit"),
        (["oltp_read_only", "--mysql-dry-run"], "not accepted", ""),
        (["oltp_read_only", "--workload=x.toml"], "two workloads", ""),
        (["oltp_read_only", "mysql://a", "mysql://b"], "two servers", ""),
    ],
)
def test_what_is_refused_and_what_is_advised(arguments: list[str], why: str, advice: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        parse_command_line(arguments)
    assert advice in caught.value.advice


def test_a_password_on_the_command_line_is_refused_and_not_repeated() -> None:
    for arguments in (["--mysql-password=hunter22"], ["--mysql-password", "hunter22"], ["--pgsql-password=hunter22"]):
        with pytest.raises(UsageError, match=r"--(my|pg)sql-password is not accepted") as caught:
            parse_command_line(["oltp_read_only", *arguments])
        assert "hunter22" not in caught.value.message + caught.value.advice
        assert "--password-file" in caught.value.advice


def test_what_makes_no_sense_is_said_to_be_ignored() -> None:
    options = parse_command_line(["oltp_read_only", "--validate", "--thread-stack-size=64K", "--num-threads=3"])
    assert [note.split()[0] for note in options.notes] == ["--validate", "--thread-stack-size", "--num-threads"]
    assert options.value("threads") == 3


def test_load_options_reach_the_job() -> None:
    job = make_job(
        "oltp_read_only", "--rate=500", "--arrivals=bursts", "--burst=7", "--warmup-time=2", "--ramp=3s", "--events=9",
        "--idle-connections=4", "--connect=per-transaction", "--on-disconnect=reconnect", "--reconnect=50",
        "--client-work=decode", "--breakdown", "--engine-threads=2", "--mysql-ignore-errors=all", "--report-interval=2",
        "--thread-init-timeout=5", "--stall-timeout=7s",
    )  # fmt: skip
    assert job.arrivals is not None
    assert (job.arrivals.rate_per_s, job.arrivals.shape, job.arrivals.burst) == (500, "bursts", 7)
    assert (job.warmup_ns, job.ramp_ns) == (3_000_000_000, 3_000_000_000), "the ramp is part of the warm-up"
    assert (job.transactions, job.idle_connections, job.threads, job.ignore_errors) == (9, 4, 2, "all")
    session = job.session
    assert (session.connect, session.on_disconnect, session.reconnect_after) == ("per_transaction", "reconnect", 50)
    assert (job.client_work, job.breakdown, job.interval_ns) == ("decode", True, 2_000_000_000)
    assert (job.connect_timeout_ns, job.stall_timeout_ns) == (5_000_000_000, 7_000_000_000)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--time=0"], "would never end"),
        (["--rand-pareto-h=2"], "--rand-pareto-h=2.0: "),
        (["--mysql-storage-engine=a b"], "--mysql-storage-engine=a b: "),
        (["--mysql-ignore-errors=1213,x"], "'x' is not an error code"),
        (["--time=2000h"], "--time="),
    ],
)
def test_contract_errors_name_the_option(arguments: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        make_job("oltp_read_only", *arguments)


def test_what_has_one_table_in_sysbench_has_one_here() -> None:
    assert workload("select_random_points").tables == 1
    with pytest.raises(UsageError, match="--tables=2: select_random_ranges uses one table"):
        make_job("select_random_ranges", "--tables=2")


def test_sysbenchs_server_options() -> None:
    options = parse_command_line(
        [
            "oltp_read_only",
            "--mysql-host=h",
            "--mysql-port=33",
            "--mysql-user=u",
            "--mysql-ssl",
            "--mysql-compression=on",
        ]
    )
    address = address_from_options(options)
    assert address == ServerAddress(host="h", port=33, user="u", ssl_mode="REQUIRED", compression="zlib")
    for arguments in (["--mysql-host=a,b"], ["--mysql-port=x"], ["--mysql-ssl=preferred"],
                  ["--mysql-compression", "--mysql-compression-algorithms=zlib,zstd"]):  # fmt: skip
        with pytest.raises(UsageError):
            address_from_options(parse_command_line(["oltp_read_only", *arguments]))


def test_tls_and_what_it_needs() -> None:
    options = parse_command_line(["oltp_read_only"])
    assert build_session(ServerAddress(host="h"), options).tls is None, "a transport nobody asked for is not used"
    full = build_session(ServerAddress(host="db.example", ssl_mode="VERIFY_IDENTITY", ssl_ca="ca.pem"), options).tls
    assert full is not None and (full.verify, full.server_name) == ("full", "db.example")
    by_password = build_session(ServerAddress(host="db.example", ssl_mode="VERIFY_IDENTITY"), options).tls
    assert by_password is not None and by_password.verify == "password", "tls-9"
    for address, why in (
        (ServerAddress(host="h", ssl_ca="ca.pem"), "without ssl-mode"),
        (ServerAddress(host="h", ssl_mode="VERIFY_CA"), "needs the CA"),
        (ServerAddress(host="h", ssl_mode="REQUIRED", ssl_cert="c.pem"), "be given together"),
        (ServerAddress(socket="/s", ssl_mode="VERIFY_IDENTITY", ssl_ca="ca.pem"), "a socket has none"),
    ):
        with pytest.raises(UsageError, match=why):
            build_session(address, options)


def test_the_name_is_sent_whatever_is_verified() -> None:
    """[tls-2]"""
    options = parse_command_line(["oltp_read_only"])
    for mode, ca in (("REQUIRED", None), ("VERIFY_CA", "ca.pem"), ("VERIFY_IDENTITY", "ca.pem")):
        tls = build_session(ServerAddress(host="db.example", ssl_mode=mode, ssl_ca=ca), options).tls  # type: ignore[arg-type]
        assert tls is not None and (tls.server_name, tls.sni) == ("db.example", True)
    silent = build_session(ServerAddress(host="db.example", ssl_mode="REQUIRED", sni=False), options).tls
    assert silent is not None and not silent.sni


def test_the_password_itself_leaves_by_consent_which_a_dsn_does_not_exclude() -> None:
    words = ["oltp_read_only", "--get-server-public-key", "--allow-cleartext-password"]
    asked = parse_command_line(words)
    dsn = ServerAddress(host="h", user="u")
    agreed = build_session(check_sources(True, address_from_options(asked)).with_fallback(dsn), asked)
    assert agreed.fetch_server_key and agreed.allow_cleartext_password
    options = address_from_options(parse_command_line(words[:1]))
    silent = build_session(check_sources(True, options).with_fallback(dsn), asked)
    assert not silent.fetch_server_key and not silent.allow_cleartext_password


def test_the_transport_is_printed_first() -> None:
    options = parse_command_line(["oltp_read_only"])
    assert transport_line(SOCKET, build_session(SOCKET.address, options)) == (
        "Unix socket /s, user u, database d, no TLS, no compression"
    )
    assert transport_line(TCP, build_session(TCP.address, options)).startswith("TCP to 192.0.2.1:3306 (h), ")
    assert "never-to-be-seen" not in repr(TCP)


def test_tables_jobs() -> None:
    options = parse_command_line(["oltp_read_write", "--threads=4", "--tables=8", "prepare"])
    job = build_tables_job(options, SOCKET, build_workload(options, None), seed=5)
    assert (job.action, job.connections) == ("prepare", 4)
    assert isinstance(job.workload, Sysbench) and job.workload.tables == 8


@pytest.mark.parametrize(
    ("options", "mode"),
    [([], "disable"), (["--db-ps-mode=auto"], "auto"), (["--pipeline=4"], "auto"), (["--protocol=prepared"], "auto")],
)
def test_workloads_of_pgbench_have_its_default(options: list[str], mode: str) -> None:
    """[cli-5] That is -M simple, which takes three times as long as prepared statements."""
    workload = build_workload(parse_command_line(["postgresql://h/d", "tpcb-like", *options]), None)
    assert isinstance(workload, Pgbench) and workload.db_ps_mode == mode
    other = build_workload(parse_command_line(["postgresql://h/d", "oltp_read_only"]), None)
    assert isinstance(other, Sysbench) and other.db_ps_mode == "auto"
