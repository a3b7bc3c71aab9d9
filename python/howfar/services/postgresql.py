"""PostgreSQL."""

from __future__ import annotations

from howfar.services.service import KnownService

POSTGRESQL = KnownService(
    name="postgresql",
    label="PostgreSQL",
    kinds=("postgresql",),
    port=5432,
    programs=("postgres", "postmaster", "edb-postgres"),
    sockets=("/run/postgresql/.s.PGSQL.5432", "/tmp/.s.PGSQL.5432"),
    socket_names=(".s.PGSQL.",),
    files=("/var/lib/pgsql/data/postgresql.conf",),
    file_label="postgresql.conf",
    socket_lines=("unix_socket_directories = '{folder}'",),
    mode_lines=("unix_socket_permissions = 0777   # the default; pg_hba.conf decides who may connect",),
    client_lines=(
        "# libpq and clients built on it: the socket's directory as host",
        "postgresql:///shop?host=/var/run/postgresql",
        "# PHP, PDO",
        "pgsql:host=/var/run/postgresql;dbname=shop",
    ),
    fewer_round_trips="one query with IN or JOIN instead of many, multi-row INSERT, a pipeline of statements",
    names_socket_directory=True,
    asks_for_tls=True,
    account_lines=(
        "first, in pg_hba.conf above the lines that begin with local, such as 'local all all peer'; then reload",
        "local   DB   USER   METHOD   # METHOD of the host line that serves the client now, such as scram-sha-256",
    ),
    php=("pdo_pgsql", "host=/run/postgresql, not localhost", "pgsql:host=/run/postgresql;dbname=shop"),
)
