"""A server that listens on a socket whose path leads nowhere any more, or to another server."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen
from howfar.doctor.findings import Gain
from howfar.doctor.lines.servers import socket_again
from howfar.doctor.sockets import CLEANED


def check(seen: Seen) -> list[Made]:
    found = []
    for listener in seen.server.sockets:
        if listener.state not in ("gone", "elsewhere"):
            continue
        assert listener.path is not None, "a socket has a path"
        cleaned = listener.path.startswith(CLEANED)
        what = "leads nowhere any more" if listener.state == "gone" else "leads to somebody else"
        why = ", as cleaners of temporary files make it, or a service with a /tmp of its own" if cleaned else ""
        path = seen.path if cleaned or listener.state == "elsewhere" else listener.path
        gain = Gain(says="the socket can be used again", basis="the path was tried just now", saves_ns=None)
        found.append(
            Made(f"it listens on the socket {listener.path}, which {what}{why}", socket_again(seen.server, path), gain)
        )
    return found
