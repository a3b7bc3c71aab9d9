"""Pages that query over several connections at once, as dashboards and gateways do: PostgreSQL by psycopg2, MariaDB by PyMySQL.

python concurrent_pages.py prepare python concurrent_pages.py widgets,gateway PAGES

The server is that of the enclosing `howfar lab`. `widgets`: four widgets in parallel, each with its own connection and 3 to 9
successive queries. `gateway`: one query, then three services in parallel with 4 queries each, then two queries. Prints a line of JSON
with the times in ns and reports each page to a recorder."""

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
WIDGET_QUERIES = (3, 5, 7, 9)
SERVICE_QUERIES = (4, 4, 4)


def connect():
    """A connection in autocommit mode."""
    if os.environ.get("HOWFAR_PROTOCOL") == "postgresql":
        import psycopg2

        connection = psycopg2.connect("")
        connection.autocommit = True
        return connection
    import pymysql

    password = Path(os.environ["HOWFAR_PASSWORD_FILE"]).read_text().strip()
    address = (
        {"unix_socket": os.environ["HOWFAR_SOCKET"]}
        if "HOWFAR_SOCKET" in os.environ
        else {"host": os.environ["HOWFAR_HOST"], "port": int(os.environ["HOWFAR_PORT"])}
    )
    return pymysql.connect(
        user=os.environ["HOWFAR_USER"],
        password=password,
        database=os.environ["HOWFAR_DATABASE"],
        autocommit=True,
        **address,
    )


def run_query(connection, key: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT text FROM note WHERE id = %s", (key,))
        assert cursor.fetchone() is not None


def run_queries(connection, count: int) -> None:
    for key in range(count):
        run_query(connection, key)


def page(name: str, connections, threads: ThreadPoolExecutor) -> None:
    if name == "gateway":
        run_queries(connections[0], 1)
    counts = SERVICE_QUERIES if name == "gateway" else WIDGET_QUERIES
    list(threads.map(run_queries, connections, counts))
    if name == "gateway":
        run_queries(connections[0], 2)


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
    connections = [connect() for _ in WIDGET_QUERIES]
    found: dict[str, list[int]] = {name: [] for name in names}
    rng = random.Random(20_265)
    with ThreadPoolExecutor(len(connections)) as threads:
        for number in range(pages + 2):
            for name in rng.sample(names, len(names)):
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
