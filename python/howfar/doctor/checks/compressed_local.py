"""MySQL sessions on this machine that compress: processor time spent to spare a network that is not there."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen, do, forwards
from howfar.doctor.findings import Change, Gain
from howfar.doctor.lines.clients import commands_without

_OPTIONS = Change(
    where="the client's own options",
    lines=("without MYSQL_CLIENT_COMPRESS, PDO::MYSQL_ATTR_COMPRESS, compress=true, --compress",),
    restarts=False,
)
"""Not a line of [client], which would end it on the way to other machines too."""


def check(seen: Seen) -> list[Made]:
    using = [client for client in seen.server.clients if client.local and client.compressed and not forwards(client)]
    if not using:
        return []
    changes = (*commands_without("compress", using), _OPTIONS)
    gain = Gain(
        says="the processor time of compressing each answer, and of expanding it",
        basis="by what was measured elsewhere: 3 ms of the server for 100 kB with zlib, 0.5 to 1 ms with zstd; not measured here",
        saves_ns=None,
    )
    return [Made(f"{do(using, 'compresses', 'compress')} what never leaves this machine", changes, gain)]
