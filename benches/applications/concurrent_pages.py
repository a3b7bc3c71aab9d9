"""Pages that query over several connections at once, as dashboards and gateways do: PostgreSQL by psycopg2, MariaDB by PyMySQL.

    python concurrent_pages.py prepare
    python concurrent_pages.py widgets,gateway PAGES

The server is that of the enclosing `howfar lab`. `widgets`: four widgets at once, each with its own connection and 3 to 9 queries in
turn. `gateway`: one query, then three services at once with 4 queries each, then two queries. Prints a line of JSON with the times in
ns and reports each page to a recorder.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROWS = 200
OF_WIDGETS = (3, 5, 7, 9)
OF_SERVICES = (4, 4, 4)


def connect():
    """A connection in autocommit mode."""
    if os.environ.get("HOWFAR_PROTOCOL") == "postgresql":
        import psycopg2

        made = psycopg2.connect("")
        made.autocommit = True
        return made
    import pymysql

    password = Path(os.environ["HOWFAR_PASSWORD_FILE"]).read_text().strip()
    place = (
        {"unix_socket": os.environ["HOWFAR_SOCKET"]}
        if "HOWFAR_SOCKET" in os.environ
        else {"host": os.environ["HOWFAR_HOST"], "port": int(os.environ["HOWFAR_PORT"])}
    )
    return pymysql.connect(
        user=os.environ["HOWFAR_USER"],
        password=password,
        database=os.environ["HOWFAR_DATABASE"],
        autocommit=True,
        **place,
    )


def ask(connection, key: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT text FROM note WHERE id = %s", (key,))
        assert cursor.fetchone() is not None


def in_turn(connection, count: int) -> None:
    for key in range(count):
        ask(connection, key)


def page(name: str, connections, threads: ThreadPoolExecutor) -> None:
    if name == "gateway":
        in_turn(connections[0], 1)
    at_once = OF_SERVICES if name == "gateway" else OF_WIDGETS
    list(threads.map(in_turn, connections, at_once))
    if name == "gateway":
        in_turn(connections[0], 2)


def main() -> None:
    if sys.argv[1] == "prepare":
        with connect().cursor() as cursor:
            cursor.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, text VARCHAR(400))")
            rows = ", ".join(f"({number}, '{'words ' * 40}')" for number in range(ROWS))
            cursor.execute(f"INSERT INTO note VALUES {rows}")
        return
    names, pages = sys.argv[1].split(","), int(sys.argv[2])
    host, _, port = os.environ.get("HOWFAR_MARKS", "").rpartition(":")
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    connections = [connect() for _ in OF_WIDGETS]
    found: dict[str, list[int]] = {name: [] for name in names}
    chance = random.Random(20_265)
    with ThreadPoolExecutor(len(connections)) as threads:
        for number in range(pages + 2):
            for name in chance.sample(names, len(names)):
                begun = time.monotonic_ns()
                page(name, connections, threads)
                ended = time.monotonic_ns()
                if number < 2:
                    continue  # warm-up: threads are created
                found[name].append(ended - begun)
                if port:
                    line.sendto(f"page 0 {begun} {ended} http {name}".encode(), (host, int(port)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
