"""How large tables may be here: by memory, by disk, by control groups, and that tomorrow's answer is today's."""

from __future__ import annotations

from pathlib import Path

import pytest

from howfar.lab.servers import ready_timeout_s
from howfar.lab.servers.contents import find_rows
from howfar.lab.servers.program import Program
from howfar.lab.servers.table_store import LOADED, template_name
from howfar.plan.factors import Content
from howfar.plan.types import Data
from howfar.runner import preflight
from howfar.runner.preflight import memory_limit, rows_at_all, rows_in, rows_that_fit, sizes_kept

GIB = 2**30
PROGRAM = Program(kind="mariadb", path=Path("/fake/mariadbd"), version="10.11.6", key="mariadb-10.11.6-ab")
PUBLISHED = Data(tables=20, table_size=10_000_000, fit=True)


def test_the_published_tables_fit_in_a_large_machine() -> None:
    """20 x 10 million rows of 250 bytes: 50 GB as files, 62.5 GB as the pool."""
    assert rows_in(120 * GIB, 100 * GIB, 20, 1) >= 10_000_000
    assert rows_in(100 * GIB, 100 * GIB, 20, 1) < 10_000_000
    assert rows_in(120 * GIB, 40 * GIB, 20, 1) < 10_000_000


@pytest.mark.parametrize(("memory", "disk"), [(0, 10**12), (GIB, 10**12), (10**12, 0)])
def test_where_there_is_no_room_nothing_fits(memory: int, disk: int) -> None:
    assert rows_in(memory, disk, 20, 1) == 0


def test_each_content_is_kept_apart() -> None:
    disk = 4 * 10**9
    assert rows_in(10**12, disk, 1, 2) == rows_in(10**12, disk, 1, 1) // 2


def test_a_template_that_is_there_needs_no_more_disk() -> None:
    assert rows_in(10**12, 0, 20, 1, kept=(1000, 5_000_000)) == 5_000_000
    in_memory = rows_in(10 * GIB, 10**12, 20, 1)
    assert rows_in(10 * GIB, 0, 20, 1, kept=(1000, in_memory + 1)) == 1000, "but memory"


@pytest.mark.parametrize(("there", "rows"), [((), 0), (("digits",), 0), (("digits", "text"), 2_000_000)])
def test_only_the_very_templates_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[Content, ...], rows: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(preflight, "memory_bytes", lambda what: 10**12)
    monkeypatch.setattr(preflight, "memory_limit", lambda membership, root: float("inf"))
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 0}))
    shelf = tmp_path / "howfar" / LOADED
    other = Program(kind="mariadb", path=Path("/fake/mariadbd"), version="11.4.2", key="mariadb-11.4.2-cd")
    for content in there:
        (shelf / template_name(PROGRAM, 20, 2_000_000, find_rows(content))).mkdir(parents=True)
        (shelf / template_name(PROGRAM, 20, 3_000_000, find_rows(content))).mkdir()  # no size that would be chosen
        (shelf / template_name(PROGRAM, 10, 5_000_000, find_rows(content))).mkdir()
        (shelf / template_name(other, 20, 5_000_000, find_rows(content))).mkdir()
    contents: tuple[Content, ...] = ("digits", "text")
    assert rows_that_fit(PUBLISHED, contents, PROGRAM) == rows
    assert sizes_kept(shelf, PROGRAM, 20, contents) == ((2_000_000, 3_000_000) if rows else ())


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("0::/", "memory.max"),
        ("0::/a/b", "a/memory.max"),
        ("0::/of/outside", "memory.max"),
        ("4:memory:/a\n0::/", "memory/a/memory.limit_in_bytes"),
        ("4:cpu,cpuacct:/x\n3:memory:/of/outside", "memory/memory.limit_in_bytes"),
    ],
)
def test_a_control_group_limits_also_from_above(tmp_path: Path, membership: str, file: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    limit = tmp_path / file
    limit.parent.mkdir(parents=True, exist_ok=True)
    limit.write_text("4294967296\n")
    assert memory_limit(membership, tmp_path) == 4 * GIB


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    assert memory_limit("0::/", tmp_path) == float("inf")


@pytest.mark.parametrize(
    ("total", "limit", "available"), [(64, 1000, 64), (1000, 64, 1000), (1000, 1000, 64 * 0.7 / 0.9)]
)
def test_the_scarcest_of_the_machine_its_group_and_what_is_free_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, total: float, limit: float, available: float
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    memory = {"MemTotal": total * GIB, "MemAvailable": available * GIB}
    monkeypatch.setattr(preflight, "memory_bytes", memory.__getitem__)
    monkeypatch.setattr(preflight, "memory_limit", lambda membership, root: limit * GIB)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10**14}))
    found = rows_that_fit(PUBLISHED, ("digits",), PROGRAM)
    assert found == pytest.approx(rows_in(64 * GIB * 0.7, 10**14, 20, 1), rel=1e-3)


def test_a_server_has_time_to_read_its_tables() -> None:
    assert ready_timeout_s(0) == 60
    assert ready_timeout_s(62_500_000_000) > 62.5e9 / 100e6, "a disk of 100 MB/s"


@pytest.mark.parametrize("scarce", ["MemTotal", "MemAvailable", "limit"])
def test_more_than_the_servers_pool_has_room_for_is_too_much_whatever_lies_on_disk(
    monkeypatch: pytest.MonkeyPatch, scarce: str
) -> None:
    """20 tables of 250 bytes a row, and a quarter more for the pool: 6250 bytes for a row of each."""

    def size(what: str) -> int:
        return 64 * 10**9 if what == scarce else 10**15

    monkeypatch.setattr(preflight, "memory_bytes", size)
    monkeypatch.setattr(preflight, "memory_limit", lambda membership, root: size("limit"))
    assert rows_at_all(PUBLISHED) == 64 * 10**9 // 6250
