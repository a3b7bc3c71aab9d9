"""What can be wrong. A new check is a function from a `Context` to findings, and one line in CHECKS.

A check asks nobody anything, and where it cannot know it reports nothing.
"""

from __future__ import annotations

from howfar.doctor.checks.connections import authority_bundle, connect_churn
from howfar.doctor.checks.context import Check, Context
from howfar.doctor.checks.encryption import compressed_local, encrypted_local, encrypted_socket
from howfar.doctor.checks.idle import idle_states
from howfar.doctor.checks.sessions import idle_sessions, statement_by_statement
from howfar.doctor.checks.sockets import (
    forwarder,
    loopback_tcp,
    options_ignored,
    socket_gone,
    socket_off,
    socket_out_of_reach,
)
from howfar.doctor.findings import Finding, Severity

CHECKS: tuple[tuple[str, Check], ...] = (
    ("socket-gone", socket_gone),
    ("authority-bundle", authority_bundle),
    ("loopback-tcp", loopback_tcp),
    ("socket-off", socket_off),
    ("socket-out-of-reach", socket_out_of_reach),
    ("forwarder", forwarder),
    ("connect-churn", connect_churn),
    ("compressed-local", compressed_local),
    ("encrypted-local", encrypted_local),
    ("encrypted-socket", encrypted_socket),
    ("idle-sessions", idle_sessions),
    ("statement-by-statement", statement_by_statement),
    ("options-ignored", options_ignored),
    ("idle-states", idle_states),
)
"""By the name under which a finding is shown, in the order in which findings are shown."""


def findings(context: Context) -> tuple[Finding, ...]:
    found = [draft.finding(name) for name, check in CHECKS for draft in check(context)]
    return tuple(sorted(found, key=lambda finding: finding.severity is not Severity.CHANGE))
