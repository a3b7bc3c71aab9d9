"""`howfar record` on real servers: what it decodes against their own counters, every byte, and no literal anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from howfar.lab.servers import DATABASE, USER
from howfar.recording.recording import Recording, read
from tests.lab.servers_here import Running, prepared, short_directory, started

pytestmark = pytest.mark.usefixtures("namespaces")
HOWFAR = str(Path(sys.executable).with_name("howfar"))
SECRETS = ("Xylophon77", "Quagga4711", "Zebrafink99")
PAGE = """
import os, pymysql
to = os.environ["TO"]
where = {"unix_socket": to} if to.startswith("/") else dict(zip(("host", "port"), (to.split(":")[0], int(to.split(":")[1]))))
line = pymysql.connect(user=os.environ["DB_USER"], password=os.environ["DB_PASSWORD"], database=os.environ["DB"], **where)
with line.cursor() as cursor:
    for number in range(20):
        cursor.execute("SELECT %s, 'Xylophon77' /* Zebrafink99 */", (number,))
    cursor.execute("SET @x = 'Quagga4711'")
    cursor.execute("SELECT 1 WHERE 'Quagga4711' IN (%s, %s, %s)", ("Xylophon77", "b", "c"))
    try:
        cursor.execute("SELECT Zebrafink99 FROM nothing_of_that_name")
    except pymysql.Error:
        pass
line.ping()
line.commit()
line.close()
"""


@pytest.fixture(scope="module")
def server(mariadb: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    work = short_directory(tmp_path_factory.mktemp("r"))
    with started(prepared("mariadb", work)) as running:
        yield running


def record(
    server: Running, to: str, out: Path, *command: str, options: tuple[str, ...] = ("--json",)
) -> subprocess.CompletedProcess[str]:
    environment = {"TO": to, "DB": DATABASE, "DB_USER": USER, "DB_PASSWORD": server.password, "PAGE": PAGE}
    command = command or (sys.executable, "-c", PAGE)
    arguments = [
        HOWFAR,
        "record",
        "--server",
        to,
        "--out",
        str(out),
        *options,
        "--",
        *command,
    ]
    return subprocess.run(arguments, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)


def address(server: Running, kind: str) -> str:
    host, port = server.address
    return str(server.server.socket) if kind == "socket" else f"{host}:{port}"


def counted(server: Running) -> Counter[str]:
    rows = server.execute("SHOW GLOBAL STATUS LIKE 'Com_%'")
    found = {str(row["Variable_name"])[4:].lower(): str(row["Value"]) for row in rows}
    return Counter({name: int(value) for name, value in found.items() if value.isdigit()})


@pytest.mark.parametrize("kind", ["socket", "tcp"])
def test_what_is_recorded_is_what_the_server_counted(server: Running, kind: str, tmp_path: Path) -> None:
    out = tmp_path / "a.recording"
    before = counted(server)
    done = record(server, address(server, kind), out)
    assert done.returncode == 0, done.stderr
    grown = counted(server) - before
    recording = read(out)
    commands = recording.facts["commands"]
    # The test's own questions: a login's SET, and SHOW.
    assert commands["select"] == grown["select"] == 22
    assert commands["set"] in (grown["set_option"], grown["set_option"] - 1)
    assert commands["ping"] == grown["admin_commands"]
    assert commands["commit"] == grown["commit"] == 1
    assert recording.facts["unknown"] == {}
    assert recording.facts["complete"] is True
    assert recording.facts["bytes"]["all_passed_on"] is True
    check_round_trips(recording)
    found = json.loads(done.stdout)
    assert found["round_trips"] == len(recording.round_trips)
    assert 0 < found["pages"][0]["waiting"]["value"] < 1


def check_round_trips(recording: Recording) -> None:
    (connection,) = recording.connections
    assert (connection.protocol, connection.login_round_trips) == ("mysql", 2)
    (page,) = recording.pages
    assert page.method == "command"
    assert len(page.round_trips) == len(recording.round_trips)
    looped = [one for one in page.round_trips if digest(recording, one.digest_id) == "SELECT ?, ?"]
    assert len(looped) == 20
    assert len({one.keys for one in looped}) == 20
    assert {one.rows for one in looped} == {1}
    (folded,) = [one for one in page.round_trips if "IN" in digest(recording, one.digest_id)]
    assert digest(recording, folded.digest_id) == "SELECT ? WHERE ? IN (...)"
    assert [one.failed for one in page.round_trips].count(True) == 1
    assert page.round_trips[-1].command == "quit"
    for one in page.round_trips:
        assert one.begun_ns <= one.sent_ns <= one.answered_ns <= one.ended_ns


def digest(recording: Recording, number: int | None) -> str:
    return recording.digest_by_id[number].text if number else ""


def test_no_secret_is_anywhere(server: Running, tmp_path: Path) -> None:
    """In no file that recording leaves or makes meanwhile, nor in what is shown. A bare word of a statement is no literal."""
    out = tmp_path / "a.recording"
    watch = (
        PAGE + f"\nimport pathlib; held = b''.join(p.read_bytes() for p in pathlib.Path({str(tmp_path)!r}).iterdir())"
    )
    watch += f"\npathlib.Path({str(tmp_path / 'held')!r}).write_bytes(held)"
    for options in ((), ("--json",)):
        done = record(server, address(server, "socket"), out, sys.executable, "-c", watch, options=options)
        assert done.returncode == 0, done.stderr
        held = out.read_bytes() + (tmp_path / "held").read_bytes() + done.stdout.encode() + done.stderr.encode()
        for secret in SECRETS[:2]:
            assert secret.encode() not in held
        assert held.count(b"Zebrafink99") <= 4, "the column's name, never the comment"
        assert server.password.encode() not in held
        out.unlink()


def test_marks_name_pages(server: Running, tmp_path: Path) -> None:
    script = "; ".join(f'{HOWFAR} mark {name} -- {sys.executable} -c "$PAGE"' for name in ("shop", "cart", "shop"))
    out = tmp_path / "a.recording"
    done = record(server, address(server, "socket"), out, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    recording = read(out)
    assert [(page.name, page.method) for page in recording.pages] == [
        ("shop", "mark"),
        ("cart", "mark"),
        ("shop", "mark"),
    ]
    assert len({len(page.round_trips) for page in recording.pages}) == 1
    assert all(one.page_id for one in recording.round_trips)


def test_a_command_that_makes_no_round_trip_is_refused_and_leaves_no_file(server: Running, tmp_path: Path) -> None:
    out = tmp_path / "a.recording"
    done = record(server, address(server, "socket"), out, "true")
    assert done.returncode == 2
    assert "made no round trip through the tap" in done.stderr
    assert not list(tmp_path.iterdir())
