"""A client of one server, started by `tests.lab.doctor_scenario`: holds a connection, or opens one for each request.

    python -m tests.lab.doctor_client KIND TRANSPORT MODE ACCOUNT REPORT [NAME [LOGIN]]

TRANSPORT is `tcp:PORT`, `tls:PORT` or `unix:PATH`; MODE is `hold`, `each` (a connection
for each request), `seldom` (the same, slowly), or `seldom-default`: with all defaults of its library.
REPORT is a file for the number of connects and the CPU time of the process.
NAME becomes the name of the process, LOGIN is USER:PASSWORD.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - loaded here, because the account may not be able to read it later
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

_PAUSE_S = {"hold": 0.005, "each": 0.001, "seldom": 0.6, "seldom-default": 0.25}
"""Pauses between requests. With `each`, handshakes take noticeable CPU time; with `seldom` they do not, even at 5 ms
each. With `seldom-default`, an examination sees several connects, each of which reads the CA bundle."""
_REQUESTS = {"redis": b"PING\r\n", "memcached": b"version\r\n"}


def _unverified_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _cache(kind: str, transport: str, address: str, context: ssl.SSLContext) -> Callable[[], None]:
    if transport == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
    else:
        connection = socket.create_connection(("127.0.0.1", int(address)))
        if transport == "tls":
            connection = context.wrap_socket(connection)

    def send_request() -> None:
        connection.sendall(_REQUESTS[kind])
        assert connection.recv(100)

    return send_request


def _mysql(transport: str, address: str, context: ssl.SSLContext, defaults: bool, login: str) -> Callable[[], None]:
    target: dict[str, Any] = (
        {"unix_socket": address} if transport == "unix" else {"host": "127.0.0.1", "port": int(address)}
    )
    if transport == "tls":
        target["ssl"] = context
    elif not defaults:
        target["ssl_disabled"] = True
    user, _, password = login.partition(":")
    connection = pymysql.connect(user=user or "root", password=password, **target)

    def send_request() -> None:
        with connection.cursor() as cursor:
            cursor.execute("DO 1")

    return send_request


def _postgresql(transport: str, address: str, login: str) -> Callable[[], None]:
    target: dict[str, Any] = (
        {"unix_sock": address} if transport == "unix" else {"host": "127.0.0.1", "port": int(address)}
    )
    password = login.partition(":")[2] or None
    connection = pg8000.native.Connection("app", database="postgres", password=password, ssl_context=False, **target)

    def send_request() -> None:
        connection.run("SELECT 1")

    return send_request


def _main(
    kind: str, transport: str, mode: str, account: str, report_path: str, name: str = "", login: str = ""
) -> None:
    transport, _, address = transport.partition(":")
    context = _unverified_context()
    if name:
        Path("/proc/self/comm").write_text(name)
    report = Path(report_path)
    report.touch(mode=0o666)
    report.chmod(0o666)
    entry = pwd.getpwnam(account)
    os.setgroups(os.getgrouplist(account, entry.pw_gid))
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    connects, send_request, reported_at = 0, None, 0.0
    while True:
        if send_request is None or mode != "hold":
            if kind == "mysql":
                send_request = _mysql(transport, address, context, mode == "seldom-default", login)
            elif kind == "postgresql":
                send_request = _postgresql(transport, address, login)
            else:
                send_request = _cache(kind, transport, address, context)
            connects += 1
        send_request()
        time.sleep(_PAUSE_S[mode])
        if time.monotonic() - reported_at > 0.1:
            reported_at = time.monotonic()
            report.write_text(f"{connects} {time.process_time_ns()}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
