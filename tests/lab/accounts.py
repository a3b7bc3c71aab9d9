"""Accounts for tests, one for each authentication that a server offers; they may do everything in the laboratory's database."""

from __future__ import annotations

from dataclasses import dataclass, field

import pymysql

from howfar.lab.servers import DATABASE
from tests.lab.servers_here import Running

_LIBRARIES = {"ed25519": "auth_ed25519", "parsec": "auth_parsec"}
"""What MariaDB has beside the server program; Debian packs them with the service, so the machine's own may lack them."""
_NATIVE = "mysql_native_password"


@dataclass(frozen=True)
class Account:
    """`authentication` as the server names it."""

    authentication: str
    user: str
    password: str = field(repr=False)


def offered(running: Running) -> tuple[str, ...]:
    """Authentications by password that this server has, its plugins loaded."""
    if running.server.kind == "mysql":
        # 8.0 has the native one, 8.4 has it switched off, 9 has it no more.
        return _active(running, "caching_sha2_password", _NATIVE)
    for library in _LIBRARIES.values():
        try:
            running.execute(f"INSTALL SONAME '{library}'")
        except pymysql.Error:  # not there, or loaded already: the list of what is active tells
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
    """A new account; `require` as SQL has it (`SSL`, `X509`). One of that name from before is replaced."""
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
    """Empty the cache of caching_sha2_password: the next login of each account is a full one again."""
    running.execute("FLUSH PRIVILEGES")
