"""PostgreSQL's sessions: each is a process of the server, and inside a transaction it may wait for its client's next statement."""

from __future__ import annotations

from howfar.doctor.checks.context import Context, Draft, do, format_time
from howfar.doctor.findings import Change, Gain, Severity, Transport

FEWEST_SESSIONS = 50
IDLE_SHARE = 0.9
"""Of the sessions. A pool of the application's own that is sized for its peak has fewer."""
WAITING_SHARE = 0.5
"""Of the time in transactions, spent waiting for the client. It holds the client's own work too."""
_FEWEST_PER_S = 10
_POOLERS = ("pgbouncer", "odyssey", "pgcat")
_POOLER = Change(
    where="a pooler between the clients and the server, pgbouncer.ini",
    lines=(
        "[pgbouncer]",
        "pool_mode = transaction   # prepared statements need pgbouncer 1.21; SET and LISTEN need session",
        "default_pool_size = 20   # sessions per user and database",
    ),
    restarts=False,
)
_PIPELINE = Change(
    where="the client's code, where a statement does not need the answer to the one before",
    lines=(
        "libpq: PQenterPipelineMode; psycopg: with connection.pipeline(): …; pgx: SendBatch",
        "or one statement for the transaction: a function, or a query with a CTE",
    ),
    restarts=False,
)


def idle_sessions(context: Context) -> list[Draft]:
    """No pooler, or one that keeps a session for each of its clients."""
    server = context.server
    if server.sessions is None or server.idle_sessions is None or server.sessions < FEWEST_SESSIONS:
        return []
    if server.idle_sessions < IDLE_SHARE * server.sessions:
        return []
    poolers = [client for client in server.clients if client.program in _POOLERS]
    says = f"{server.idle_sessions} of its {server.sessions} sessions are idle, and each is a process of the server"
    if poolers:
        says = f"{says}; {do(poolers, 'keeps', 'keep')} sessions, as with pool_mode = session"
    gain = Gain(
        says="the memory of a process each, and snapshots that look at fewer of them",
        basis="pg_stat_activity, seen once; not measured here",
        saves_ns=None,
    )
    return [Draft(says, (_POOLER,), gain, Severity.NOTE)]


def statement_by_statement(context: Context) -> list[Draft]:
    """Transactions that wait for their client more than they work: each statement is a round trip."""
    rates = context.server.rates
    if rates is None or not rates.waiting or rates.working is None or rates.statements < _FEWEST_PER_S:
        return []
    share = rates.waiting / (rates.waiting + rates.working)
    if share < WAITING_SHARE:
        return []
    floor = context.server.floor(Transport.SOCKET, Transport.TCP, Transport.TLS)
    beside = f"; a round trip here takes {format_time(floor.round_trip_ns.median)}" if floor is not None else ""
    gain = Gain(
        says=f"at most {format_time(rates.waiting / rates.statements * 1e9)} of a transaction{beside}; the client's own work is in it",
        basis="pg_stat_database: idle_in_transaction_time beside active_time, while watched",
        saves_ns=None,
    )
    says = f"{share * 100:.0f} % of the time in transactions it waits for its client's next statement"
    return [Draft(says, (_PIPELINE,), gain, Severity.NOTE)]
