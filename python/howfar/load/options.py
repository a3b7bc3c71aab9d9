"""The option table of `howfar load`: sysbench's names and defaults by dialect, and howfar's own options.

Read by `cmdline.py` (parsing), `job.py` (meaning), `--help`, documents and tests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["int", "number", "switch", "text", "choice", "list", "seconds", "duration", "file"]
"""`seconds`: a bare number, as in sysbench, or a number with a unit; `duration`: with a unit only."""
Treatment = Literal["used", "ignored", "refused"]


@dataclass(frozen=True)
class Option:
    """One option. `default` is that of sysbench 1.0, `default_11` that of 1.1 if it differs."""

    name: str
    kind: Kind
    default: str | None
    help: str
    group: str = ""
    default_11: str | None = None
    choices: tuple[str, ...] = ()
    treatment: Treatment = "used"
    why: str = ""
    """Why an option is ignored or refused, or what to do instead."""
    same_as: str = ""
    """The option for which this is a deprecated name."""
    low: int = 0
    """Numbers below this are refused."""
    high: int = 0
    """Numbers above this are refused; 0 means no limit."""
    bare: str = ""
    """Value of the option if it is given without a value. A switch without a value is on."""
    field: str = ""
    """The field of the job that the option sets, such as `job.connections`, `session.…`, `server.…`, `workload.…` or `distribution.…`;
    empty if it does not set exactly one."""

    def default_of(self, dialect: str) -> str | None:
        return self.default_11 if dialect == "1.1" and self.default_11 is not None else self.default


LOAD, RANDOM_NUMBERS, SERVER, TABLES, STATEMENT_MIX = (
    "Load",
    "Random numbers",
    "Server and session",
    "Tables",
    "Statements of a transaction",
)
BEYOND_SYSBENCH, MEASURE, OUTPUT = "Load, beyond sysbench", "Measurement", "Output"
IGNORED, REFUSED = "Accepted and ignored", "Refused"
GROUPS = (SERVER, LOAD, BEYOND_SYSBENCH, TABLES, STATEMENT_MIX, RANDOM_NUMBERS, MEASURE, OUTPUT, IGNORED, REFUSED)


def _in_group(group: str, *options: Option, part: str = "") -> tuple[Option, ...]:
    """Put options into a group. `part`: the part of the job in which each option sets the field of the same name."""
    return tuple(
        replace(option, group=group, field=option.field or (f"{part}.{option.name.replace('-', '_')}" if part else ""))
        for option in options
    )


_LOAD = _in_group(
    LOAD,
    Option("threads", "int", "1", "number of connections that carry load", low=1, field="job.connections"),
    Option("time", "seconds", "10", "length of the measured window; 0 means until --events are done"),
    Option("events", "int", "0", "stop after this many transactions; 0 means no limit", field="job.transactions"),
    Option("rate", "number", "0", "transactions due per second (open loop); 0 means a closed loop"),
    Option("warmup-time", "seconds", "0", "length of the load before the measured window"),
    Option("thread-init-timeout", "seconds", "30", "longest wait for all connections to open", low=1,
           field="job.connect_timeout_ns"),
    Option("reconnect", "int", "0", "reconnect after this many transactions; 0 means never",
           field="session.reconnect_after"),
    Option("mysql-ignore-errors", "list", "1213,1020,1205",
           "errors that restart a transaction, or `all`; also SQLSTATEs [PostgreSQL: 40001,40P01,23505]"),
    Option("tx-rate", "number", None, "", same_as="rate"),
    Option("max-requests", "int", None, "", same_as="events"),
    Option("max-time", "seconds", None, "", same_as="time"),
    Option("num-threads", "int", None, "", same_as="threads"),
)  # fmt: skip

_RANDOM_NUMBERS = _in_group(
    RANDOM_NUMBERS,
    Option("rand-type", "choice", "special", "distribution of row ids", default_11="uniform",
           choices=("uniform", "gaussian", "special", "pareto", "zipfian"), field="distribution.kind"),
    Option("rand-spec-iter", "int", "12", "number of draws summed by gaussian and special", low=1,
           field="distribution.spec_iter"),
    Option("rand-spec-pct", "int", "1", "percentage of rows that are special", low=1, field="distribution.spec_pct"),
    Option("rand-spec-res", "int", "75", "percentage of draws that are special", low=1, field="distribution.spec_res"),
    Option("rand-pareto-h", "number", "0.2", "shape of pareto", field="distribution.pareto_h"),
    Option("rand-zipfian-exp", "number", "0.8", "exponent of zipfian", field="distribution.zipfian_exp"),
    Option("rand-seed", "int", "0", "seed; the same seed draws the same rows; 0 means a random one"),
)  # fmt: skip

_SERVER = _in_group(
    SERVER,
    Option("mysql-host", "list", None, "host, instead of a DSN; localhost means TCP"),
    Option("mysql-port", "list", None, "port"),
    Option("mysql-socket", "list", None, "Unix socket; takes precedence over a host"),
    Option("mysql-user", "text", None, "user [sbtest]", field="server.user"),
    Option("mysql-db", "text", None, "database [sbtest]", field="server.database"),
    Option("mysql-ssl", "text", None, "on, off, or a mode as in the DSN's ssl-mode", bare="on"),
    Option("mysql-ssl-ca", "text", None, "file of CA certificates (PEM)", field="server.ssl_ca"),
    Option("mysql-ssl-cert", "text", None, "file of the client certificate (PEM)", field="server.ssl_cert"),
    Option("mysql-ssl-key", "text", None, "file of the client key (PEM)", field="server.ssl_key"),
    Option("mysql-ssl-cipher", "text", None, "cipher suite", field="server.ssl_cipher"),
    Option("mysql-compression", "switch", None, "compress the protocol"),
    Option("mysql-compression-algorithms", "text", None, "zlib or zstd, with --mysql-compression"),
    Option("env", "text", None, "environment variable that holds the DSN, instead of a DSN"),
    Option("password-file", "file", None, "file whose first line is the password"),
    Option("ask-password", "switch", "off", "ask for the password on the terminal"),
    Option("get-server-public-key", "switch", None, "over plain TCP, request the RSA key that encrypts the password",
           field="server.fetch_server_key"),
    Option("allow-cleartext-password", "switch", None, "send the password in clear text if the server asks for it",
           field="server.allow_cleartext_password"),
    Option("defaults-file", "file", None, "option file of MySQL's or MariaDB's clients that supplies defaults"),
    Option("connect", "choice", "persistent", "open a connection once, or for each transaction",
           choices=("persistent", "per-transaction"), bare="per-transaction"),
    Option("on-disconnect", "choice", "stop", "what to do when a connection is lost",
           choices=("stop", "reconnect"), field="session.on_disconnect"),
    Option("db-ps-mode", "choice", "auto",
           "prepared statements, text, several text statements per request, or (PostgreSQL) parsed for each request",
           choices=("auto", "disable", "multi", "extended"), field="workload.db_ps_mode"),
    Option("pipeline", "int", "1", "PostgreSQL: number of statements of a transaction that are sent at once", low=1,
           field="session.pipeline"),
    Option("db-driver", "choice", "mysql", "protocol to use without a DSN", choices=("mysql", "pgsql")),
    Option("pgsql-host", "text", None, "with --db-driver=pgsql: host, or directory of the socket"),
    Option("pgsql-port", "text", None, "port"),
    Option("pgsql-user", "text", None, "user [sbtest]"),
    Option("pgsql-db", "text", None, "database [sbtest]"),
    Option("pgsql-sslmode", "text", None, "as sslmode in a postgresql:// DSN"),
)  # fmt: skip

_TABLES = _in_group(
    TABLES,
    Option("tables", "int", "1", "number of tables", low=1),
    Option("table-size", "int", "10000", "number of rows in each table", low=1),
    Option("scale", "int", "1", "scale factor of pgbench's tables, with 100,000 accounts each", low=1, field="pgbench.scale"),
    Option("auto-inc", "switch", "on", "take ids from AUTO_INCREMENT; off: from the client"),
    Option("secondary", "switch", "off", "use a secondary key instead of the primary key"),
    Option("create-secondary", "switch", "on", "create an index on k"),
    Option("mysql-storage-engine", "text", "innodb", "storage engine"),
    Option("create-table-options", "text", "", "appended to CREATE TABLE"),
    part="workload",
)  # fmt: skip

_STATEMENT_MIX = _in_group(
    STATEMENT_MIX,
    Option("range-size", "int", "100", "number of rows in a range", low=1),
    Option("point-selects", "int", "10", "selects by id"),
    Option("range-selects", "switch", "on", "all range selects, or none"),
    Option("simple-ranges", "int", "1", "ranges by id"),
    Option("sum-ranges", "int", "1", "SUM() over a range"),
    Option("order-ranges", "int", "1", "ranges with ORDER BY"),
    Option("distinct-ranges", "int", "1", "ranges with DISTINCT"),
    Option("index-updates", "int", "1", "updates of the indexed column"),
    Option("non-index-updates", "int", "1", "updates of another column"),
    Option("delete-inserts", "int", "1", "rows deleted and inserted again"),
    Option("skip-trx", "switch", "off", "do not use BEGIN and COMMIT"),
    Option("random-points", "int", "10", "number of ids in a select_random_points", low=1),
    Option("number-of-ranges", "int", "10", "number of ranges in a select_random_ranges", low=1),
    Option("delta", "int", "5", "length of each such range"),
    part="workload",
)  # fmt: skip

_BEYOND_SYSBENCH = _in_group(
    BEYOND_SYSBENCH,
    Option("workload", "file", None, "your own workload, in TOML, instead of WORKLOAD"),
    Option("dialect", "choice", "1.0", "defaults and report layout of sysbench 1.0 or 1.1", choices=("1.0", "1.1")),
    Option("arrivals", "choice", "poisson", "with --rate: how requests arrive",
           choices=("poisson", "constant", "bursts")),
    Option("burst", "int", "10", "requests per burst with --arrivals=bursts", low=1),
    Option("ramp", "duration", "0s", "time over which the load grows; part of the warm-up, which is extended if shorter",
           field="job.ramp_ns"),
    Option("idle-connections", "int", "0", "additional connections that are opened and never used",
           field="job.idle_connections"),
    Option("search", "text", None, "find the highest rate that meets a goal, e.g. 'p99<5ms'"),
    Option("search-low", "number", "100", "first rate to try", low=1),
    Option("search-high", "number", None, "highest rate to try", low=1),
    Option("stall-timeout", "duration", "120s", "longest wait for one answer", field="job.stall_timeout_ns"),
    Option("driver", "choice", "auto", "how the engine waits for its sockets",
           choices=("auto", "epoll", "io_uring"), field="job.driver"),
    Option("engine-threads", "int", None, "maximum threads of the engine [one per CPU]", low=1, field="job.threads"),
)  # fmt: skip

_MEASURE = _in_group(
    MEASURE,
    Option("percentile", "int", "95", "percentile in interval lines and --report=sysbench; 0 means none", high=100),
    Option("client-work", "choice", "touch", "what to do with rows: skip them, read each byte, or decode them",
           choices=("skip", "touch", "decode"), field="job.client_work"),
    Option("breakdown", "switch", "off", "record the stages of each statement", field="job.breakdown"),
    Option("interval", "duration", None, "length of an interval [1s, or --report-interval]"),
)  # fmt: skip

_OUTPUT = _in_group(
    OUTPUT,
    Option("report", "choice", "human", "layout of the report", choices=("human", "sysbench", "pgbench")),
    Option("report-interval", "seconds", "0", "seconds between progress lines (with --interval: every interval); 0 means none"),
    Option("histogram", "switch", "off", "print the latency histogram, with sysbench's buckets"),
    Option("json", "switch", "off", "all events and a summary as JSON lines, instead of the report"),
    Option("prometheus", "file", None, "write the result for a node exporter's textfile collector"),
    Option("hdr-log", "file", None, "write all histograms as an HdrHistogram log"),
)  # fmt: skip


def _without_use(group: str, treatment: Treatment, *rows: tuple[str, Kind, str]) -> tuple[Option, ...]:
    return tuple(Option(name, kind, None, "", group, treatment=treatment, why=why) for name, kind, why in rows)


_IGNORED = _without_use(
    IGNORED,
    "ignored",
    ("forced-shutdown", "text", "the engine ends its window itself and bounds every wait"),
    ("thread-stack-size", "text", "connections have no threads or stacks"),
    ("debug", "switch", "--json reports everything"),
    ("validate", "switch", "every answer is parsed and checked"),
    ("verbosity", "int", "notes and errors go to stderr, the report to stdout"),
    ("db-debug", "switch", "--json reports everything"),
    ("mysql-debug", "switch", "no client library is called"),
    ("luajit-cmd", "text", "there is no Lua"),
    ("pgsql-variant", "text", "Redshift is not supported"),
    ("report-per-command", "switch", "statements are always in the report"),
    ("no-vacuum", "switch", "no load vacuums"),
    ("vacuum-all", "switch", "no load vacuums"),
    ("quiet", "switch", "--report-interval=0 is the default"),
)  # fmt: skip

_REFUSED = _without_use(
    REFUSED,
    "refused",
    ("mysql-password", "text", "every user of this machine could read it"),
    ("pgsql-password", "text", "every user of this machine could read it"),
    ("mysql-dry-run", "switch", "nothing would be measured; see --help and the receipt"),
    ("config-file", "file", "put its options on the command line, and the server into --defaults-file"),
    ("report-checkpoints", "text", "run it once per window, or use --json with --interval"),
)  # fmt: skip

OPTIONS: tuple[Option, ...] = (
    *_SERVER, *_LOAD, *_BEYOND_SYSBENCH, *_TABLES, *_STATEMENT_MIX, *_RANDOM_NUMBERS, *_MEASURE, *_OUTPUT, *_IGNORED, *_REFUSED
)  # fmt: skip
BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
