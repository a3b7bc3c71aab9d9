"""Accounts for tests, one for each authentication method that a server offers, with all privileges on the laboratory's database."""

from __future__ import annotations

from dataclasses import dataclass, field

import pymysql

from howfar.lab.servers import DATABASE
from tests.lab.local_servers import LocalServer

_PLUGIN_LIBRARIES = {"ed25519": "auth_ed25519", "parsec": "auth_parsec"}
"""Plugin libraries of MariaDB. Debian packages them with the service, so the installed server may lack them."""
_NATIVE = "mysql_native_password"


@dataclass(frozen=True)
class Account:
    """An account. `authentication`: the server's name of its authentication method."""

    authentication: str
    user: str
    password: str = field(repr=False)


def supported_methods(server: LocalServer) -> tuple[str, ...]:
    """The password authentication methods of this server, after its plugins are loaded."""
    if server.process.kind == "mysql":
        # The native method is on in 8.0, off in 8.4, and removed in 9.
        return _active_plugins(server, "caching_sha2_password", _NATIVE)
    for library in _PLUGIN_LIBRARIES.values():
        try:
            server.execute(f"INSTALL SONAME '{library}'")
        except pymysql.Error:  # missing, or loaded already: the list of active plugins shows which
            continue
    return _active_plugins(server, _NATIVE, *_PLUGIN_LIBRARIES)


def _active_plugins(server: LocalServer, *names: str) -> tuple[str, ...]:
    rows = server.execute(
        "SELECT PLUGIN_NAME AS name FROM information_schema.PLUGINS WHERE PLUGIN_STATUS = 'ACTIVE' "
        "AND PLUGIN_TYPE = 'AUTHENTICATION'"
    )
    active = {str(row["name"]) for row in rows}
    return tuple(name for name in names if name in active)


def create_account(server: LocalServer, authentication: str, password: str, *, require: str = "") -> Account:
    """Create an account, replacing an earlier one of that name; `require` as in SQL (`SSL`, `X509`)."""
    assert "'" not in password
    user = f"by_{authentication}"
    if server.process.kind == "mysql":
        identified = f"IDENTIFIED WITH {authentication} BY '{password}'"
    else:
        identified = f"IDENTIFIED VIA {authentication} USING PASSWORD('{password}')"
    server.execute(
        f"DROP USER IF EXISTS {user}@'%'",
        f"CREATE USER {user}@'%' {identified}{f' REQUIRE {require}' if require else ''}",
        f"GRANT ALL PRIVILEGES ON {DATABASE}.* TO {user}@'%'",
    )
    return Account(authentication, user, password)


def clear_login_cache(server: LocalServer) -> None:
    """Empty the cache of caching_sha2_password, so that the next login of each account performs the full authentication."""
    server.execute("FLUSH PRIVILEGES")
