"""Connections that each transaction opens for itself: the round trips of opening, which the engine does not count a transaction.

Not here: what opening costs in processor time and by TLS (`economics.encryption`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from howfar.plan.factors import ORDINARY
from howfar.store.records import FactorValue

_PLAIN_TURNS = 4
"""TCP, greeting, login, prepared statements: of receipts that do not count them."""


def connects_each_time(factors: Mapping[str, FactorValue]) -> bool:
    return factors.get("connect", ORDINARY["connect"]) == "per-transaction"


def connect_turns(receipts: Sequence[Mapping[str, Any]], factors: Mapping[str, FactorValue]) -> float:
    """A transaction, of an arm's good trials. 0: its connections stay, or no receipt says what they were."""
    if not connects_each_time(factors):
        return 0.0
    found = [_turns(session) for receipt in receipts if isinstance(session := receipt.get("session"), Mapping)]
    return mean(found) if found else 0.0


def _turns(session: Mapping[str, Any]) -> int:
    counted = session.get("connect_turns")
    if isinstance(counted, int):
        return counted
    if session.get("tls_version") is None:
        return _PLAIN_TURNS
    begun_in_two = session.get("tls_version") == "TLSv1.2" or session.get("tls_retried") is True
    return _PLAIN_TURNS + (2 if begun_in_two and not session.get("tls_resumed") else 1)
