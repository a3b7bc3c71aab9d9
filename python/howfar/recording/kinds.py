"""Classifies round trips by phase, command and statement. All counts, names and advice use this classification. No I/O."""

from __future__ import annotations

import re
from enum import StrEnum


class TripKind(StrEnum):
    """The purpose of a round trip."""

    CONNECT = "connect"
    PREPARE = "prepare"
    """Prepared a statement without running it."""
    FETCH = "fetch"
    """Fetched more rows of an open result."""
    BEGIN = "begin"
    END = "end"
    CLOSE = "close"
    """Closed a prepared statement, by a request that is answered."""
    CONTROL = "control"
    """Other control of transactions, cursors and prepared statements."""
    SETTING = "setting"
    """Set a connection's session state, or checked whether the connection is alive."""
    READ = "read"
    """Read data; repeating the same read at once would return the same data."""
    OTHER = "other"

    @property
    def is_run(self) -> bool:
        """Whether the round trip ran a statement or command of the application."""
        return self in (TripKind.READ, TripKind.OTHER)


_WORDS = {
    TripKind.PREPARE: ("prepare",),
    TripKind.FETCH: ("fetch",),
    TripKind.CLOSE: ("deallocate", "close_statement"),
    TripKind.CONTROL: (
        *("rollback", "savepoint", "release"),
        *("declare", "close", "move", "describe", "reset_statement"),
    ),
    TripKind.SETTING: ("ping", "init_db", "use", "set_option", "reset_connection", "hello", "client"),
    TripKind.READ: (
        *("select", "show", "table", "values", "with"),
        *("get", "gets", "mget", "strlen", "getrange", "exists", "type", "keys"),
        *("hget", "hmget", "hgetall", "hkeys", "hvals", "hlen", "hexists"),
        *("lrange", "lindex", "llen", "smembers", "sismember", "smismember", "scard"),
        *("zrange", "zrevrange", "zrangebyscore", "zscore", "zcard", "zcount", "zrank"),
    ),
}
_KIND_BY_WORD = {word: kind for kind, words in _WORDS.items() for word in words}
"""Kind by the first word of a statement or command, if that word determines it."""
_BEGIN_STATEMENT = re.compile(r"(BEGIN(?!\s+NOT)|START\s+TRANSACTION)\b", re.IGNORECASE)
_END_STATEMENT = re.compile(r"(COMMIT|END|ROLLBACK(?!\s+TO\b))\b", re.IGNORECASE)
_SETTING_STATEMENT = re.compile(
    r"""SET \s+
    (?! (PASSWORD | DEFAULT | ROLE | RESOURCE | STATEMENT | LOCAL | TRANSACTION | CONSTRAINTS | SESSION\s+AUTHORIZATION) \b)
    (?! .* \b (GLOBAL | PERSIST | PERSIST_ONLY) \b) (?! .* (?<!@)@(?!@))""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""SET of session state, not of an account, the server, a single transaction or a user variable."""
_NOT_REPEATABLE = re.compile(
    r"""\b ( FOR \s+ (NO\s+KEY\s+)? UPDATE | FOR \s+ (KEY\s+)? SHARE | LOCK \s+ IN \s+ SHARE | INTO | DELETE \s+ FROM
    | UPDATE \s+ \S+ \s+ SET ) \b
    | \b ( NEXTVAL | SETVAL | LASTVAL | CURRVAL | LAST_INSERT_ID | FOUND_ROWS | ROW_COUNT | (GET|RELEASE)_LOCK | PG_\w*ADVISORY\w*
    | RAND | RANDOM | \w*UUID\w* | (PG_)?SLEEP | TXID_CURRENT ) \s* \(""",
    re.IGNORECASE | re.VERBOSE,
)
"""Parts of reads that change or lock something, or whose answer differs each time."""
_CONNECTION_STATEMENTS = ("select ?", "select")
"""`SELECT 1`, which only checks whether the connection is alive, and the Redis command that selects a database."""


def is_assignment(text: str) -> bool:
    """Whether a statement sets something, such as a user's variable: its literals are values, not keys to fetch by."""
    return text.upper().startswith("SET ")


def classify_round_trip(phase: str, command: str, text: str) -> TripKind:
    """The kind of a round trip. `text`: its statement without literals, or its command; pipelined ones are joined with `; `."""
    if phase == "connect":
        return TripKind.CONNECT
    if command in ("prepare", "fetch"):  # protocol commands; `text` is the statement to which they apply
        return TripKind(command)
    kinds = {_kind_of_statement(part) for statement in text.split(";") if (part := statement.strip("( "))}
    return kinds.pop() if len(kinds) == 1 else TripKind.OTHER


def _kind_of_statement(text: str) -> TripKind:
    if _BEGIN_STATEMENT.match(text):
        return TripKind.BEGIN
    if _END_STATEMENT.match(text):
        return TripKind.END
    if _SETTING_STATEMENT.match(text) or text.lower() in _CONNECTION_STATEMENTS:
        return TripKind.SETTING
    kind = _KIND_BY_WORD.get(text.split(maxsplit=1)[0].lower(), TripKind.OTHER)
    return TripKind.OTHER if kind is TripKind.READ and _NOT_REPEATABLE.search(text) else kind
