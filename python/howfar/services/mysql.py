"""MySQL and MariaDB."""

from __future__ import annotations

from howfar.services.service import Service

MYSQL = Service(
    name="mysql",
    label="MySQL",
    kinds=("mysql", "mariadb"),
    port=3306,
    programs=("mysqld", "mariadbd"),
    sockets=("/run/mysqld/mysqld.sock", "/var/lib/mysql/mysql.sock", "/tmp/mysql.sock"),
    socket_names=("mysql", "maria"),
    files=(
        "/etc/mysql/mariadb.conf.d/50-server.cnf",
        "/etc/mysql/mysql.conf.d/mysqld.cnf",
        "/etc/my.cnf.d/mariadb-server.cnf",
        "/etc/my.cnf.d/mysql-server.cnf",
        "/etc/mysql/my.cnf",
        "/etc/my.cnf",
    ),
    file="my.cnf",
    socket_lines=("[mysqld]", "socket = {path}"),
    mode_lines=(),
    client_lines=(
        "# option file of MySQL clients; the server reports",
        "# its socket: SELECT @@socket",
        "[client]",
        "socket = /run/mysqld/mysqld.sock",
        "# PHP, PDO",
        "mysql:unix_socket=/run/mysqld/mysqld.sock;dbname=shop",
    ),
    fewer_round_trips="one query with IN or JOIN instead of many, multi-row INSERT",
    accounts=(
        "First, in SQL: over the socket, the account is 'USER'@'localhost', which may differ from the one used over TCP",
        "SHOW CREATE USER 'USER'@'localhost';  -- it must exist, with its password and privileges, before {path} is used",
    ),
    php=("pdo_mysql", "host=localhost, not 127.0.0.1", "mysql:unix_socket=/run/mysqld/mysqld.sock;dbname=shop"),
)
