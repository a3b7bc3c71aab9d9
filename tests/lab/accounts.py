"""Accounts for tests, one for each authentication method that a server offers, with all privileges on the laboratory's database."""

from __future__ import annotations

from dataclasses import dataclass, field

import pymysql

from howfar.lab.servers import DATABASE
from tests.lab.servers_here import Running

_LIBRARIES = {"ed25519": "auth_ed25519", "parsec": "auth_parsec"}
"""Plugin libraries of MariaDB. Debian packages them with the service, so the installed server may lack them."""
_NATIVE = "mysql_native_password"


@dataclass(frozen=True)
class Account:
    """An account; `authentication` is the server's name of its authentication method."""

    authentication: str
    user: str
    password: str = field(repr=False)


def offered(running: Running) -> tuple[str, ...]:
    """The password authentication methods of this server, after its plugins are loaded."""
    if running.server.kind == "mysql":
        # The native method is on in 8.0, off in 8.4, and removed in 9.
        return _active(running, "caching_sha2_password", _NATIVE)
    for library in _LIBRARIES.values():
        try:
            running.execute(f"INSTALL SONAME '{library}'")
        except pymysql.Error:  # missing, or loaded already: the list of active plugins shows which
            continue
    return _active(running, _NATIVE, *_LIBRARIES)


def _active(running: Running, *names: str) -> tuple[str, ...]:
    rows = running.execute(
        "SELECT PLUGIN_NAME AS name FROM information_schema.PLUGINS WHERE PLUGIN_STATUS = 'ACTIVE' "
        "AND PLUGIN_TYPE = 'AUTHENTICATION'"
    )
    there = {str(row["name"]) for row in rows}
    return tuple(name for name in names if name in there)


def create(running: Running, authentication: str, password: str, *, require: str = "") -> Account:
    """Create an account, replacing an earlier one of that name; `require` as in SQL (`SSL`, `X509`)."""
    assert "'" not in password
    user = f"by_{authentication}"
    if running.server.kind == "mysql":
        identified = f"IDENTIFIED WITH {authentication} BY '{password}'"
    else:
        identified = f"IDENTIFIED VIA {authentication} USING PASSWORD('{password}')"
    running.execute(
        f"DROP USER IF EXISTS {user}@'%'",
        f"CREATE USER {user}@'%' {identified}{f' REQUIRE {require}' if require else ''}",
        f"GRANT ALL PRIVILEGES ON {DATABASE}.* TO {user}@'%'",
    )
    return Account(authentication, user, password)


def forget_logins(running: Running) -> None:
    """Empty the cache of caching_sha2_password: the next login of each account performs the full authentication again."""
    running.execute("FLUSH PRIVILEGES")
