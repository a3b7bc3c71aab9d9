"""What can be wrong, one file for each thing. A new one: a file with a function `check`, and a line in CHECKS.

A check gets what was seen and gives findings; it asks nobody anything. Where it cannot know, it accuses nobody.
"""

from __future__ import annotations

from howfar.doctor.checks import (
    authority_bundle,
    compressed_local,
    connect_churn,
    encrypted_local,
    encrypted_socket,
    forwarder,
    loopback_tcp,
    options_ignored,
    socket_gone,
    socket_off,
    socket_out_of_reach,
)
from howfar.doctor.checks.seen import Check, Seen
from howfar.doctor.findings import Finding, Severity

CHECKS: tuple[tuple[str, Check], ...] = (
    ("socket-gone", socket_gone.check),
    ("authority-bundle", authority_bundle.check),
    ("loopback-tcp", loopback_tcp.check),
    ("socket-off", socket_off.check),
    ("socket-out-of-reach", socket_out_of_reach.check),
    ("forwarder", forwarder.check),
    ("connect-churn", connect_churn.check),
    ("compressed-local", compressed_local.check),
    ("encrypted-local", encrypted_local.check),
    ("encrypted-socket", encrypted_socket.check),
    ("options-ignored", options_ignored.check),
)
"""By the name under which a finding is shown; in the order in which they are."""


def findings(seen: Seen) -> tuple[Finding, ...]:
    found = [made.finding(name) for name, check in CHECKS for made in check(seen)]
    return tuple(sorted(found, key=lambda finding: finding.severity is not Severity.CHANGE))
