"""A server that listens on a socket whose file is gone, or whose path now leads to another server."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen
from howfar.doctor.findings import Change, Gain, Kind
from howfar.doctor.lines.servers import PATHS, socket_on
from howfar.doctor.sockets import CLEANED


def check(seen: Seen) -> list[Made]:
    found = []
    for listener in seen.server.sockets:
        if listener.state not in ("gone", "elsewhere"):
            continue
        assert listener.path is not None, "a socket has a path"
        cleaned = listener.path.startswith(CLEANED)
        what = "is gone" if listener.state == "gone" else "leads to somebody else"
        why = ", as cleaners of temporary files make it, or a service with a /tmp of its own" if cleaned else ""
        path = PATHS[seen.server.kind] if cleaned else listener.path
        gain = Gain(says="the socket can be used again", basis="the path was tried just now", saves_ns=None)
        found.append(
            Made(f"it listens on the socket {listener.path}, whose file {what}{why}", _changes(seen, path), gain)
        )
    return found


def _changes(seen: Seen, path: str) -> tuple[Change, ...]:
    using = seen.by_tcp() or list(seen.server.clients)
    return socket_on(seen.server, using if seen.server.kind is not Kind.MYSQL else (), path)
