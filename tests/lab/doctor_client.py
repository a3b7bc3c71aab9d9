"""A client of one server, started by `tests.lab.doctor_scenario`: holds a connection, or opens one for each request.

    python -m tests.lab.doctor_client KIND WAY MODE ACCOUNT REPORT [NAME [LOGIN]]

WAY is `tcp:PORT`, `tls:PORT` or `unix:PATH`; MODE is `hold`, `each` (a connection
for each request), `seldom` (the same, slowly), or `seldom-default`: with all defaults of its library.
REPORT is a file for the number of connects and the CPU time of the process.
NAME becomes the name of the process, LOGIN is USER:PASSWORD.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - Python loads it late, when the account may no longer read it
import os
import pwd
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pg8000.native
import pymysql

_PAUSE_S = {"hold": 0.005, "each": 0.001, "seldom": 0.6, "seldom-default": 0.6}
"""Pauses between two requests. With `each`, handshakes take noticeable CPU time; with `seldom` not, even at 5 ms each."""
_ASKS = {"redis": b"PING\r\n", "memcached": b"version\r\n"}


def _anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _cache(kind: str, transport: str, where: str, context: ssl.SSLContext) -> Callable[[], None]:
    if transport == "unix":
        made = socket.socket(socket.AF_UNIX)
        made.connect(where)
    else:
        made = socket.create_connection(("127.0.0.1", int(where)))
        if transport == "tls":
            made = context.wrap_socket(made)

    def ask() -> None:
        made.sendall(_ASKS[kind])
        assert made.recv(100)

    return ask


def _mysql(transport: str, where: str, context: ssl.SSLContext, defaults: bool, login: str) -> Callable[[], None]:
    place: dict[str, Any] = {"unix_socket": where} if transport == "unix" else {"host": "127.0.0.1", "port": int(where)}
    if transport == "tls":
        place["ssl"] = context
    elif not defaults:
        place["ssl_disabled"] = True
    user, _, password = login.partition(":")
    connection = pymysql.connect(user=user or "root", password=password, **place)

    def ask() -> None:
        with connection.cursor() as cursor:
            cursor.execute("DO 1")

    return ask


def _postgresql(transport: str, where: str, login: str) -> Callable[[], None]:
    place: dict[str, Any] = {"unix_sock": where} if transport == "unix" else {"host": "127.0.0.1", "port": int(where)}
    password = login.partition(":")[2] or None
    connection = pg8000.native.Connection("app", database="postgres", password=password, ssl_context=False, **place)

    def ask() -> None:
        connection.run("SELECT 1")

    return ask


def _main(kind: str, transport: str, mode: str, account: str, report: Path, name: str = "", login: str = "") -> None:
    transport, _, where = transport.partition(":")
    context = _anybody()
    if name:
        Path("/proc/self/comm").write_text(name)
    report.touch(mode=0o666)
    report.chmod(0o666)
    entry = pwd.getpwnam(account)
    os.setgroups(os.getgrouplist(account, entry.pw_gid))
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    connects, held, reported_at = 0, None, 0.0
    while True:
        if held is None or mode != "hold":
            if kind == "mysql":
                held = _mysql(transport, where, context, mode == "seldom-default", login)
            elif kind == "postgresql":
                held = _postgresql(transport, where, login)
            else:
                held = _cache(kind, transport, where, context)
            connects += 1
        held()
        time.sleep(_PAUSE_S[mode])
        if time.monotonic() - reported_at > 0.1:
            reported_at = time.monotonic()
            report.write_text(f"{connects} {time.process_time_ns()}")


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5]), *sys.argv[6:])
