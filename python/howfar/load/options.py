"""The option table of `howfar load`: sysbench's names and defaults by dialect, then what only howfar has.

Read by `cmdline.py` (parsing), `job.py` (meaning), `--help`, documents and tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["int", "number", "switch", "text", "choice", "list", "seconds", "duration", "file"]
"""`seconds`: a bare number as sysbench has it, or with a unit; `duration`: with a unit only."""
Fate = Literal["used", "ignored", "refused"]


@dataclass(frozen=True)
class Option:
    """One option. `default` is that of sysbench 1.0, `default_11` that of 1.1 where it differs."""

    name: str
    kind: Kind
    default: str | None
    help: str
    group: str
    default_11: str | None = None
    choices: tuple[str, ...] = ()
    fate: Fate = "used"
    why: str = ""
    """For an option that is ignored or refused: the reason, or what to do instead."""
    same_as: str = ""
    """A deprecated name of another option."""
    low: int = 0
    """Numbers below are refused."""
    bare: str = ""
    """What the option means without a value; a switch alone is on."""

    def default_of(self, dialect: str) -> str | None:
        return self.default_11 if dialect == "1.1" and self.default_11 is not None else self.default


LOAD, DRAWS, SERVER, TABLES, MIX = (
    "Load",
    "Random numbers",
    "Server and session",
    "Tables",
    "Statements of a transaction",
)
OWN, MEASURE, OUTPUT = "Load, beyond sysbench", "Measurement", "Output"
IGNORED, REFUSED = "Accepted and ignored", "Refused"
GROUPS = (SERVER, LOAD, OWN, TABLES, MIX, DRAWS, MEASURE, OUTPUT, IGNORED, REFUSED)

_LOAD = (
    Option("threads", "int", "1", "connections that carry load", LOAD, low=1),
    Option("time", "seconds", "10", "length of the measured window; 0: until --events are done", LOAD),
    Option("events", "int", "0", "stop after this many transactions; 0: no limit", LOAD),
    Option("rate", "number", "0", "transactions per second due (open loop); 0: closed loop", LOAD),
    Option("warmup-time", "seconds", "0", "length of the load before the measured window", LOAD),
    Option("thread-init-timeout", "seconds", "30", "longest wait for all connections to open", LOAD, low=1),
    Option("reconnect", "int", "0", "reconnect after this many transactions; 0: never", LOAD),
    Option("mysql-ignore-errors", "list", "1213,1020,1205", "errors that restart a transaction, or `all`", LOAD),
    Option("tx-rate", "number", None, "", LOAD, same_as="rate"),
    Option("max-requests", "int", None, "", LOAD, same_as="events"),
    Option("max-time", "seconds", None, "", LOAD, same_as="time"),
    Option("num-threads", "int", None, "", LOAD, same_as="threads"),
)

_DRAWS = (
    Option(
        "rand-type",
        "choice",
        "special",
        "distribution of row ids",
        DRAWS,
        "uniform",
        ("uniform", "gaussian", "special", "pareto", "zipfian"),
    ),
    Option("rand-spec-iter", "int", "12", "draws that gaussian and special sum up", DRAWS, low=1),
    Option("rand-spec-pct", "int", "1", "percent of the rows that are special", DRAWS, low=1),
    Option("rand-spec-res", "int", "75", "percent of the draws that are special", DRAWS, low=1),
    Option("rand-pareto-h", "number", "0.2", "shape of pareto", DRAWS),
    Option("rand-zipfian-exp", "number", "0.8", "exponent of zipfian", DRAWS),
    Option("rand-seed", "int", "0", "the same seed draws the same rows; 0: from the clock", DRAWS),
)

_SERVER = (
    Option("mysql-host", "list", None, "host, instead of a DSN; localhost means TCP", SERVER),
    Option("mysql-port", "list", None, "port", SERVER),
    Option("mysql-socket", "list", None, "Unix socket; takes precedence over a host", SERVER),
    Option("mysql-user", "text", None, "user [sbtest]", SERVER),
    Option("mysql-db", "text", None, "database [sbtest]", SERVER),
    Option("mysql-ssl", "text", None, "on, off, or a mode as in the DSN's ssl-mode", SERVER, bare="on"),
    Option("mysql-ssl-ca", "text", None, "CA certificates, PEM", SERVER),
    Option("mysql-ssl-cert", "text", None, "client certificate, PEM", SERVER),
    Option("mysql-ssl-key", "text", None, "client key, PEM", SERVER),
    Option("mysql-ssl-cipher", "text", None, "cipher suite", SERVER),
    Option("mysql-compression", "switch", None, "compress the protocol", SERVER),
    Option("mysql-compression-algorithms", "text", None, "zlib or zstd, with --mysql-compression", SERVER),
    Option("password-file", "file", None, "file whose first line is the password", SERVER),
    Option("ask-password", "switch", "off", "ask for the password on the terminal", SERVER),
    Option("defaults-file", "file", None, "option file whose [client] group supplies what is not given otherwise", SERVER),
    Option("connect", "choice", "persistent", "open a connection once, or for each transaction", SERVER, None,
           ("persistent", "per-transaction")),
    Option("on-disconnect", "choice", "stop", "what to do when a connection is lost", SERVER, None, ("stop", "reconnect")),
    Option("db-ps-mode", "choice", "auto", "prepared statements; text; several text statements per request", SERVER,
           None, ("auto", "disable", "multi")),
    Option("db-driver", "choice", "mysql", "", SERVER, None, ("mysql",)),
)  # fmt: skip

_TABLES = (
    Option("tables", "int", "1", "number of tables", TABLES, low=1),
    Option("table-size", "int", "10000", "rows in each", TABLES, low=1),
    Option("auto-inc", "switch", "on", "ids from AUTO_INCREMENT; off: from the client", TABLES),
    Option("secondary", "switch", "off", "a secondary key instead of the primary key", TABLES),
    Option("create-secondary", "switch", "on", "an index on k", TABLES),
    Option("mysql-storage-engine", "text", "innodb", "storage engine", TABLES),
    Option("create-table-options", "text", "", "appended to CREATE TABLE", TABLES),
)

_MIX = (
    Option("range-size", "int", "100", "rows of a range", MIX, low=1),
    Option("point-selects", "int", "10", "selects by id", MIX),
    Option("range-selects", "switch", "on", "all range selects, or none", MIX),
    Option("simple-ranges", "int", "1", "ranges by id", MIX),
    Option("sum-ranges", "int", "1", "SUM() over a range", MIX),
    Option("order-ranges", "int", "1", "ranges with ORDER BY", MIX),
    Option("distinct-ranges", "int", "1", "ranges with DISTINCT", MIX),
    Option("index-updates", "int", "1", "updates of the indexed column", MIX),
    Option("non-index-updates", "int", "1", "updates of another column", MIX),
    Option("delete-inserts", "int", "1", "a row deleted and inserted again", MIX),
    Option("skip-trx", "switch", "off", "no BEGIN and COMMIT", MIX),
    Option("random-points", "int", "10", "ids of a select_random_points", MIX, low=1),
    Option("number-of-ranges", "int", "10", "ranges of a select_random_ranges", MIX, low=1),
    Option("delta", "int", "5", "length of each of them", MIX),
)

_OWN = (
    Option("workload", "file", None, "your own workload, in TOML, instead of WORKLOAD", OWN),
    Option("dialect", "choice", "1.0", "whose defaults and report layout: sysbench 1.0 or 1.1", OWN, None, ("1.0", "1.1")),
    Option("arrivals", "choice", "poisson", "with --rate: how requests fall due", OWN, None,
           ("poisson", "constant", "bursts")),
    Option("burst", "int", "10", "requests due at one moment under --arrivals=bursts", OWN, low=1),
    Option("ramp", "duration", "0s", "time over which the load grows; part of the warm-up, which is extended to it", OWN),
    Option("idle-connections", "int", "0", "additional connections that are opened and never used", OWN),
    Option("search", "text", None, "find the highest rate that meets a goal, e.g. 'p99<5ms'", OWN),
    Option("search-low", "number", "100", "first rate to try", OWN, low=1),
    Option("search-high", "number", None, "never try a higher rate", OWN, low=1),
    Option("stall-timeout", "duration", "120s", "longest wait for one answer", OWN),
    Option("driver", "choice", "auto", "how the engine waits for its sockets", OWN, None, ("auto", "epoll", "io_uring")),
    Option("engine-threads", "int", None, "maximum threads of the engine [one per CPU]", OWN, low=1),
)  # fmt: skip

_MEASURE = (
    Option("percentile", "int", "95", "the percentile of interval lines and of --report=sysbench; 0: none", MEASURE),
    Option("client-work", "choice", "touch", "what is done with rows: skip, read each byte, or decode them", MEASURE, None,
           ("skip", "touch", "decode")),
    Option("breakdown", "switch", "off", "record the stages of each statement", MEASURE),
    Option("interval", "duration", None, "length of an interval [1s, or --report-interval]", MEASURE),
)  # fmt: skip

_OUTPUT = (
    Option("report", "choice", "human", "layout of the report", OUTPUT, None, ("human", "sysbench")),
    Option(
        "report-interval",
        "seconds",
        "0",
        "seconds between progress lines (with --interval: every interval); 0: none",
        OUTPUT,
    ),
    Option("histogram", "switch", "off", "print the latency histogram, with sysbench's buckets", OUTPUT),
    Option("json", "switch", "off", "all events and a summary as JSON lines, instead of the report", OUTPUT),
    Option("prometheus", "file", None, "write the result for a node exporter's textfile collector", OUTPUT),
    Option("hdr-log", "file", None, "write all histograms as an HdrHistogram log", OUTPUT),
)


def _ignored(name: str, kind: Kind, why: str) -> Option:
    return Option(name, kind, None, "", IGNORED, fate="ignored", why=why)


def _refused(name: str, kind: Kind, why: str) -> Option:
    return Option(name, kind, None, "", REFUSED, fate="refused", why=why)


_IGNORED = (
    _ignored("forced-shutdown", "text", "the engine ends its window itself and bounds every wait"),
    _ignored("thread-stack-size", "text", "connections have no threads and stacks"),
    _ignored("debug", "switch", "--json reports everything"),
    _ignored("validate", "switch", "every answer is parsed and checked"),
    _ignored("verbosity", "int", "notes and errors go to stderr, the report to stdout"),
    _ignored("db-debug", "switch", "--json reports everything"),
    _ignored("mysql-debug", "switch", "no client library is called"),
    _ignored("luajit-cmd", "text", "there is no Lua"),
    *(_ignored(f"pgsql-{name}", "text", "only MySQL and MariaDB are supported")
      for name in ("host", "port", "user", "db", "sslmode", "variant")),
)  # fmt: skip

_REFUSED = (
    _refused("mysql-password", "text", "every user of this machine could read it"),
    _refused(
        "pgsql-password", "text", "every user of this machine could read it, and only MySQL and MariaDB are supported"
    ),
    _refused("mysql-dry-run", "switch", "nothing would be measured; see --help and the receipt"),
    _refused("config-file", "file", "put its options on the command line, and the server into --defaults-file"),
    _refused("report-checkpoints", "text", "run once per window, or use --json with --interval"),
)

OPTIONS: tuple[Option, ...] = (
    *_SERVER, *_LOAD, *_OWN, *_TABLES, *_MIX, *_DRAWS, *_MEASURE, *_OUTPUT, *_IGNORED, *_REFUSED
)  # fmt: skip
BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
