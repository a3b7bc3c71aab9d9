"""MySQL sessions on this machine that compress: processor time spent to spare a network that is not there."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen, do
from howfar.doctor.findings import Change, Gain

_LINES = (
    ("my.cnf", ("[client]", "loose-skip-compress")),
    (
        "the client's own options",
        ("without MYSQL_CLIENT_COMPRESS, PDO::MYSQL_ATTR_COMPRESS, compress=true, --compress",),
    ),
)


def check(seen: Seen) -> list[Made]:
    using = [client for client in seen.server.clients if client.local and client.compressed]
    if not using:
        return []
    changes = tuple(Change(where=where, lines=lines, restarts=False) for where, lines in _LINES)
    gain = Gain(
        says="the processor time of compressing each answer, and of expanding it",
        basis="by what was measured elsewhere: 3 ms of the server for 100 kB with zlib, 0.5 to 1 ms with zstd; not measured here",
        saves_ns=None,
    )
    return [Made(f"{do(using, 'compresses', 'compress')} what never leaves this machine", changes, gain)]
