"""PostgreSQL."""

from __future__ import annotations

from howfar.services.service import Service

POSTGRESQL = Service(
    name="postgresql",
    label="PostgreSQL",
    kinds=("postgresql",),
    port=5432,
    programs=("postgres",),
    sockets=("/run/postgresql/.s.PGSQL.5432", "/tmp/.s.PGSQL.5432"),
    socket_names=(".s.PGSQL.",),
    files=("/var/lib/pgsql/data/postgresql.conf",),
    file="postgresql.conf",
    socket_lines=("unix_socket_directories = '{folder}'",),
    mode_lines=("unix_socket_permissions = 0777   # its default: pg_hba.conf decides who is let in",),
    client_lines=(
        "# libpq and what is built on it: the socket's directory as host",
        "postgresql:///shop?host=/var/run/postgresql",
        "# PHP, PDO",
        "pgsql:host=/var/run/postgresql;dbname=shop",
    ),
    fewer_round_trips="one query with IN or JOIN for many, multi-row INSERT, a pipeline of statements",
    names_folder=True,
    asks_for_tls=True,
    accounts=(
        "pg_hba.conf, first: Debian's has peer for the socket, which refuses a role that is not named as the account; then reload",
        "local   DB   USER   scram-sha-256   # above the line 'local all all peer'",
    ),
    php=("pdo_pgsql", "host=/run/postgresql, not localhost", "pgsql:host=/run/postgresql;dbname=shop"),
)
