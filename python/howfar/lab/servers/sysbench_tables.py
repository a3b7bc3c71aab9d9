"""Make the sysbench tables: the first by LOAD DATA from generated rows, the others as copies of its tablespace.

Schema as sysbench 1.0 makes it (what `c` and `pad` are is said by their content), the index on `k` after the rows. All tables
hold the same rows.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from howfar.lab.servers import DATABASE, Tables
from howfar.lab.servers.contents import Rows, row_chunks
from howfar.lab.servers.sql_server import SqlServer


def load_tables(server: SqlServer, tables: Tables, rows: Rows, data: Path) -> None:
    """Fill the empty database, and read every page once, so that the dump at shutdown names them. Raises LabError."""
    _load_first(server, tables.size, rows, data.parent / "tmp" / "rows")
    for number in range(2, tables.count + 1):
        server.query(f"CREATE TABLE sbtest{number} LIKE sbtest1")
        server.query(f"ALTER TABLE sbtest{number} DISCARD TABLESPACE")
    if tables.count > 1:
        _copy_first(server, tables.count, data / DATABASE)
    for number in range(1, tables.count + 1):
        server.query(f"ANALYZE TABLE sbtest{number}")
        server.query(f"SELECT SUM(LENGTH(pad)) FROM sbtest{number} FORCE INDEX (PRIMARY)")
        server.query(f"SELECT COUNT(*) FROM sbtest{number} FORCE INDEX (k_{number}) WHERE k > 0")


def _load_first(server: SqlServer, size: int, rows: Rows, stream: Path) -> None:
    server.query(
        "CREATE TABLE sbtest1 (id INTEGER NOT NULL AUTO_INCREMENT, k INTEGER DEFAULT '0' NOT NULL, "
        f"c {rows.c_type} DEFAULT '' NOT NULL, pad {rows.pad_type} DEFAULT '' NOT NULL, PRIMARY KEY (id)) ENGINE = InnoDB"
    )
    server.query("SET SESSION unique_checks = 0")
    for chunk in row_chunks(rows, size):
        stream.write_bytes(chunk)
        server.query(
            f"LOAD DATA INFILE '{stream}' INTO TABLE sbtest1 FIELDS TERMINATED BY '\\t' LINES TERMINATED BY '\\n' "
            f"{rows.columns}"
        )
    stream.unlink(missing_ok=True)
    server.query("CREATE INDEX k_1 ON sbtest1 (k)")


def _copy_first(server: SqlServer, count: int, database: Path) -> None:
    server.query("FLUSH TABLES sbtest1 FOR EXPORT")
    for number in range(2, count + 1):
        for ending in ("ibd", "cfg"):
            shutil.copyfile(database / f"sbtest1.{ending}", database / f"sbtest{number}.{ending}")
    server.query("UNLOCK TABLES")
    for number in range(2, count + 1):
        server.query(f"ALTER TABLE sbtest{number} IMPORT TABLESPACE")
        server.query(f"ALTER TABLE sbtest{number} RENAME INDEX k_1 TO k_{number}")
        (database / f"sbtest{number}.cfg").unlink(missing_ok=True)
