"""Damage to an SQLite file, as by a disk, an editor or another person."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tests.unit.test_recorded_runs import unpacked

from howfar.store.records import Run
from howfar.store.run_file import UPGRADES, create, read_run

Damage = Callable[[Path, random.Random], None]


def recorded(name: str, path: Path) -> Path:
    """A recorded run as a file in its original format."""
    path.write_bytes(unpacked(f"{name}.howfar"))
    return path


def in_todays_format(name: str, path: Path) -> tuple[Path, Run]:
    """The same run as it would be written today, with checksums."""
    run = read_run(recorded(name, path.with_suffix(".old")))
    with create(path, run.info) as file:
        for trial in run.trials:
            file.append_trial(trial)
        for event in run.events:
            if not event.what.startswith(("created", "stopped")):
                file.add_event(event.what)
        assert run.stop is not None
        file.set_stop(run.stop)
    return path, read_run(path)


def make_older(path: Path, version: int) -> None:
    """Downgrade the file to an older format `version`: remove the columns that later formats added."""
    db = sqlite3.connect(path)
    db.execute("DROP INDEX trial_place")  # it names a column that is removed
    (present,) = db.execute("PRAGMA user_version").fetchone()
    for step in range(version, present):
        for added in UPGRADES[step]:
            table, _, _, column, *_ = added.split()
            db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    db.execute(f"PRAGMA user_version = {version}")
    db.commit()
    db.close()


def execute(path: Path, statements: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(statements)


def flip_a_bit(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])


def overwrite_a_page(path: Path, chance: random.Random) -> None:
    """Overwrite a random page with zeros, random bytes or a copy of another page."""
    content = path.read_bytes()
    size = int.from_bytes(content[16:18], "big")
    size = 65536 if size == 1 else size
    at, other = (size * chance.randrange(max(len(content) // size, 1)) for _ in range(2))
    page = chance.choice([bytes(size), chance.randbytes(size), content[other : other + size]])
    path.write_bytes(content[:at] + page + content[at + size :])


def change_a_value(path: Path, chance: random.Random) -> None:
    """Change a random value of a random row by SQL: another number, or a text with one character changed."""
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = chance.choice([name for name in tables if database.execute(f"SELECT 1 FROM {name}").fetchone()])
        columns = database.execute(f"PRAGMA table_info({table})").fetchall()
        _, column, kind, *_ = chance.choice(columns)
        keys = [name for _, name, *_, key in columns if key] or ["rowid"]
        rows = database.execute(f"SELECT {', '.join(keys)}, {column} FROM {table}").fetchall()
        *key, value = chance.choice(rows)
        where = " AND ".join(f"{name} = ?" for name in keys)
        changed = _changed(value, kind, chance)
        database.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE {where}", (changed, *key))
        database.commit()


def _changed(value: object, kind: str, chance: random.Random) -> object:
    if isinstance(value, str) and value:
        at = chance.randrange(len(value))
        return value[:at] + chance.choice('0123456789{}[]",:x') + value[at + 1 :]
    if isinstance(value, bytes):
        at = chance.randrange(len(value))
        return value[:at] + chance.randbytes(1) + value[at + 1 :]
    number = chance.choice([0, 1, -1, 7, 2**62, chance.randrange(10**9)])
    if isinstance(value, int | float):
        number = chance.choice([number, int(value) * 2, int(value) // 2, int(value) + 1, -int(value)])
    return str(number) if kind == "TEXT" else bytes(1) if kind == "BLOB" else max(min(number, 2**63 - 1), -(2**63))


def remove_a_row(path: Path, chance: random.Random) -> None:
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        table = chance.choice([name for name in tables if database.execute(f"SELECT 1 FROM {name}").fetchone()])
        keys = [name for _, name, *_, key in database.execute(f"PRAGMA table_info({table})") if key] or ["rowid"]
        key = chance.choice(database.execute(f"SELECT {', '.join(keys)} FROM {table}").fetchall())
        database.execute(f"DELETE FROM {table} WHERE {' AND '.join(f'{name} = ?' for name in keys)}", key)
        database.commit()


KINDS: tuple[Damage, ...] = (flip_a_bit, cut, overwrite_a_page, change_a_value, remove_a_row)
