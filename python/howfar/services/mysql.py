"""MySQL and MariaDB."""

from __future__ import annotations

from howfar.services.service import KnownService

MYSQL = KnownService(
    name="mysql",
    label="MySQL",
    kinds=("mysql", "mariadb"),
    port=3306,
    programs=("mysqld", "mariadbd", "mysqld-debug"),
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
    file_label="my.cnf",
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
    account_lines=(
        "first, in SQL: over the socket the client's account is 'USER'@'localhost', which 'USER'@'%' also matches",
        "SELECT user, host FROM mysql.user WHERE user = 'USER';  -- if neither is listed, run SHOW GRANTS for one that is, and:",
        "CREATE USER IF NOT EXISTS 'USER'@'localhost' IDENTIFIED BY 'PASSWORD';",
        "GRANT ALL ON DB.* TO 'USER'@'localhost';  -- in place of ALL, copy the grants shown",
    ),
    php=("pdo_mysql", "host=localhost, not 127.0.0.1", "mysql:unix_socket=/run/mysqld/mysqld.sock;dbname=shop"),
)
