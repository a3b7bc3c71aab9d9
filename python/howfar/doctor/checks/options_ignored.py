"""Options of memcached that are not in force beside -s, without a word from it: ports where nobody listens, TLS that is plain text."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen
from howfar.doctor.findings import Change, Gain
from howfar.doctor.lines.servers import file_of

_MEANS = {
    "-p": "nobody listens at that port",
    "-l": "nobody listens at that address",
    "-Z": "the socket speaks plain text",
}


def check(seen: Seen) -> list[Made]:
    ignored = seen.server.ignored
    if not ignored:
        return []
    means = "; ".join(f"{option}: {_MEANS[option]}" for option in ignored)
    take_out = tuple(f"# take out: {option}" for option in ignored)
    return [
        Made(
            f"beside -s it does not obey {', '.join(ignored)} ({means})",
            (Change(where=file_of(seen.server), lines=take_out, restarts=True),),
            Gain(
                says="its command line says what it does",
                basis="it was asked at all places where it listens",
                saves_ns=None,
            ),
        )
    ]
