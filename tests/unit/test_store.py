"""The run file: nothing is lost, nothing is half written, and files of other programs are not read."""

from __future__ import annotations

import base64
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.made import build, build_trial
from tests.unit.damage import make_older
from tests.unit.fake_lab import HISTOGRAM, conducted, fake_info, fakes

from howfar.contract.receipt import TrialReceipt
from howfar.contract.receipt_messages import Bytes, ServiceUse
from howfar.contract.server_receipt import SessionReceipt
from howfar.contract.violation import violation
from howfar.errors import NewerRunFile, NotARunFile, RunFileError
from howfar.file_kinds import RUN_FILE
from howfar.runner.run import execute_run
from howfar.store.records import FORMAT_VERSION, MachineLoad, StopReason, Trial, TrialStatus
from howfar.store.run_file import RunFile, create, read_run
from howfar.store.server_metrics import ServerMetrics, server_metrics


def void_trial(number: int, reason: str = "because") -> Trial:
    return build_trial(
        number,
        "socket",
        block=number // 5,
        position=number % 5,
        status=TrialStatus.VOID,
        void_reason=reason,
        receipt=TrialReceipt(session=build(SessionReceipt, peer_address="/s")),
        load=MachineLoad(psi_cpu_some_share=0.5, psi_io_some_share=None, steal_share=0.0, load_average_1m=1.5),
        warnings=("client limited",),
    )


def test_violations_are_stored_with_their_parameters(tmp_path: Path) -> None:
    found = violation("counts-differ", "redis", quantity="statements", clients=3, server=2.5)
    with create(tmp_path / "a.howfar", fake_info()) as file:
        file.append_trial(void_trial(0, found.sentence).model_copy(update={"violations": (found,)}))
        file.append_trial(void_trial(1, violation("keys-evicted", keys=3).sentence))
    stored, of_text = read_run(tmp_path / "a.howfar").trials
    assert stored.violations == stored.why_void == (found,)
    assert of_text.violations == () and of_text.why_void == (violation("keys-evicted", keys=3),)


def test_two_trials_never_have_the_same_place(tmp_path: Path) -> None:
    with create(tmp_path / "a.howfar", fake_info()) as file:
        first = void_trial(0)
        file.append_trial(first)
        with pytest.raises(RunFileError, match="UNIQUE"):
            file.append_trial(first.model_copy(update={"number": 1}))
        file.append_trial(first.model_copy(update={"number": 1, "repetition": 1}))
    assert [trial.repetition for trial in read_run(tmp_path / "a.howfar").trials] == [0, 1]


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    laboratory, _, instruments = fakes()
    info = fake_info()
    with create(path, info) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
        while_open = file.read()
    assert while_open.info == info
    run = read_run(path)
    assert run == while_open
    assert run.trials[0].measured is not None
    assert run.trials[0].measured.histograms[0].data == HISTOGRAM
    assert run.trials[0].measured.errors == {"1213": 1}


def test_a_file_of_format_1_is_read_and_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "old.howfar"
    with create(path, fake_info()) as file:
        file.append_trial(void_trial(0))
    make_older(path, 1)
    run = read_run(path)
    assert run.trials == (void_trial(0),)
    assert not run.info.whole_blocks and not run.is_verified
    with pytest.raises(RunFileError, match="older format 1"):
        RunFile(path)


def test_a_file_of_format_4_says_nothing_of_services(tmp_path: Path) -> None:
    path = tmp_path / "old.howfar"
    laboratory, _, instruments = fakes()
    conducted(path, laboratory, instruments)
    make_older(path, 4)
    found = [trial.measured for trial in read_run(path).trials]
    assert found and all(one is not None and (one.services, one.app_counters) == ((), {}) for one in found)


def test_what_was_done_with_each_service_is_read_as_written(tmp_path: Path) -> None:
    laboratory, _, instruments = fakes()
    measured = conducted(tmp_path / "a.howfar", laboratory, instruments).trials[0].measured
    assert measured is not None
    sent = Bytes(to_server=4, to_client=5)
    use = ServiceUse(service="redis", connects=1, requests=2, round_trips=3, bytes=sent, hits=6, misses=7)
    measured = measured.model_copy(update={"services": (use,), "app_counters": {"cpu_ns": 8}})
    trial = void_trial(0).model_copy(update={"measured": measured})
    with create(tmp_path / "b.howfar", fake_info()) as file:
        file.append_trial(trial)
    assert read_run(tmp_path / "b.howfar").trials == (trial,)


def test_former_names_of_fields_are_read() -> None:
    sent = Bytes(to_server=4, to_client=5)
    use = ServiceUse(service="redis", connects=1, requests=2, round_trips=3, bytes=sent, hits=6, misses=7)
    stored = use.model_dump()
    stored["turns"] = stored.pop("round_trips")
    assert ServiceUse.model_validate(stored) == use


def test_void_trials_keep_load_and_receipt(tmp_path: Path) -> None:
    with create(tmp_path / "a.howfar", fake_info()) as file:
        file.append_trial(void_trial(0))
    assert read_run(tmp_path / "a.howfar").trials == (void_trial(0),)


def test_a_finished_file_is_one_plain_file(tmp_path: Path) -> None:
    with create(tmp_path / "a.howfar", fake_info()) as file:
        file.append_trial(void_trial(0))
        assert (tmp_path / "a.howfar-wal").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.howfar"]


def test_plain_sql_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    laboratory, _, instruments = fakes()
    conducted(path, laboratory, instruments)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA application_id").fetchone() == (RUN_FILE.application_id,)
    sql = (
        "SELECT arm, count(*), avg(queries * 1e9 / elapsed_ns) FROM trial WHERE status = 'ok' GROUP BY arm ORDER BY arm"
    )
    found = db.execute(sql).fetchall()
    assert [row[:2] for row in found][:2] == [("forwarded-socket", 8), ("remote", 8)]
    assert found[0][2] == pytest.approx(7500, rel=0.001)
    assert db.execute("SELECT count(*) FROM interval").fetchone() == (40,)
    assert db.execute("SELECT data FROM histogram").fetchone() == (base64.b64decode(HISTOGRAM),)
    db.close()


_COUNT = """
import sys
from pathlib import Path
from howfar.store.run_file import read_run
print(len(read_run(Path(sys.argv[1])).trials))
"""


@pytest.mark.slow
def test_readers_and_a_writer_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    with create(path, fake_info()) as file:
        for number in range(3):
            file.append_trial(void_trial(number))
            seen = subprocess.run(
                [sys.executable, "-c", _COUNT, str(path)], capture_output=True, text=True, check=True
            ).stdout
            assert int(seen) == number + 1


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with create(tmp_path / "a.howfar", fake_info()), pytest.raises(RunFileError, match="another howfar is writing"):
        RunFile(tmp_path / "a.howfar")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    path.write_text("precious")
    with pytest.raises(RunFileError, match="already exists") as caught:
        create(path, fake_info())
    assert "howfar resume" in caught.value.advice
    assert path.read_text() == "precious"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.howfar"]


def test_what_is_left_of_a_removed_file_is_not_taken_for_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.howfar-wal").write_text("of before")
    with pytest.raises(RunFileError, match="left over from a run file that was removed"):
        create(tmp_path / "a.howfar", fake_info())


def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="there is no directory"):
        create(tmp_path / "no" / "a.howfar", fake_info())


@pytest.mark.parametrize("content", [b"", b"text\n", b"SQLite format 3\x00" + b"\x07" * 4096, os.urandom(8192)])
def test_not_a_run_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.howfar"
    path.write_bytes(content)
    with pytest.raises(NotARunFile):
        read_run(path)
    with pytest.raises(NotARunFile):
        RunFile(path)
    assert path.read_bytes() == content, "a foreign file is not touched"


def test_a_directory_and_another_database_are_no_run_files(tmp_path: Path) -> None:
    with pytest.raises(NotARunFile, match="directory"):
        read_run(tmp_path)
    db = sqlite3.connect(tmp_path / "other.db")
    db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(NotARunFile, match="not a howfar run file"):
        read_run(tmp_path / "other.db")


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="No such file"):
        read_run(tmp_path / "a.howfar")


def test_a_damaged_run_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    create(path, fake_info()).close()
    db = sqlite3.connect(path)
    db.execute("UPDATE run SET plan = '{'")
    db.commit()
    db.close()
    with pytest.raises(NotARunFile, match="damaged"):
        read_run(path)
    db = sqlite3.connect(path)
    db.execute("DELETE FROM run")
    db.commit()
    db.close()
    with pytest.raises(NotARunFile, match="damaged"):
        read_run(path)


def test_a_newer_format_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    create(path, fake_info()).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    for open_it in (read_run, RunFile):
        with pytest.raises(
            NewerRunFile, match=f"format 99, but this howfar reads formats up to {FORMAT_VERSION}"
        ) as caught:
            open_it(path)
        assert "newer howfar" in caught.value.advice
    assert path.read_bytes() == before


_WRITER = """
import sys
from pathlib import Path
from tests.unit.fake_lab import fake_info
from tests.unit.test_store import void_trial
from howfar.store.run_file import create
file = create(Path(sys.argv[1]), fake_info())
for number in range(10**6):
    file.append_trial(void_trial(number))
    print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 5, 17])
def test_sigkill_loses_no_finished_trial(tmp_path: Path, after: int) -> None:
    path = tmp_path / "a.howfar"
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        confirmed = [int(writer.stdout.readline()) for _ in range(after)]
        writer.send_signal(signal.SIGKILL)
        confirmed += [int(line) for line in writer.stdout]
    run = read_run(path)
    assert run.stop is None
    numbers = [trial.number for trial in run.trials]
    assert numbers == list(range(len(numbers)))
    assert confirmed[-1] + 1 <= len(numbers) <= confirmed[-1] + 2, "all that were confirmed, at most one more"
    with RunFile(path) as file:
        file.append_trial(void_trial(len(numbers)))
        file.set_stop(StopReason.TIME)
    assert read_run(path).stop is StopReason.TIME


_LIMITED = """
import resource, sys
from pathlib import Path
from tests.unit.fake_lab import fake_info
from tests.unit.test_store import void_trial
from howfar.errors import DiskFull
from howfar.store.run_file import create
path, limit = Path(sys.argv[1]), int(sys.argv[2])
done = 0
try:
    if limit < 100_000:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with create(path, fake_info()) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        for number in range(10_000):
            file.append_trial(void_trial(number, "x" * 5000))
            done += 1
except DiskFull as error:
    print(done, error.message.replace(chr(10), " "), "|", error.advice)
"""


def _limited(path: Path, limit: int) -> tuple[int, str]:
    command = [sys.executable, "-c", _LIMITED, str(path), str(limit)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    done, _, message = output.partition(" ")
    return int(done), message


@pytest.mark.slow
def test_a_size_limit_in_mid_run_keeps_the_finished_trials(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    done, message = _limited(path, 500_000)
    assert done > 10
    assert "disk full, quota or size limit" in message
    assert "howfar resume" in message
    assert len(read_run(path).trials) == done


@pytest.mark.slow
def test_a_size_limit_at_the_start_leaves_nothing(tmp_path: Path) -> None:
    done, message = _limited(tmp_path / "a.howfar", 8192)
    assert (done, "cannot create" in message) == (0, True)
    assert list(tmp_path.iterdir()) == []


_TINY = """
import subprocess, sys
from pathlib import Path
from tests.unit.fake_lab import fake_info
from tests.unit.test_store import void_trial
from howfar.errors import DiskFull
from howfar.store.run_file import create, read_run
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=" + sys.argv[2], "tiny", str(folder)], check=True)
done = 0
try:
    with create(folder / "a.howfar", fake_info()) as file:
        for number in range(10_000):
            file.append_trial(void_trial(number, "x" * 5000))
            done += 1
except DiskFull as error:
    print(error.message, "|", error.advice)
left = sorted(entry.name for entry in folder.iterdir())
kept = len(read_run(folder / "a.howfar").trials) if left else 0
print(done, kept, left)
"""


def _on_tiny_disk(folder: Path, size: str) -> str:
    flags = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--map-root-user"]
    probe = subprocess.run(["unshare", *flags, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"no private mounts here: {probe.stderr.strip()}")
    command = ["unshare", *flags, sys.executable, "-c", _TINY, str(folder), size]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_a_full_disk_in_mid_run_keeps_the_finished_trials(tmp_path: Path) -> None:
    message, figures = _on_tiny_disk(tmp_path, "512k").splitlines()
    assert "cannot write a trial to" in message
    done, kept, _ = figures.split(" ", 2)
    assert int(done) == int(kept) > 10


@pytest.mark.slow
def test_a_full_disk_at_the_start_leaves_nothing(tmp_path: Path) -> None:
    message, figures = _on_tiny_disk(tmp_path, "16k").splitlines()
    assert "cannot create" in message
    assert figures == "0 0 []"


def test_no_password_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.howfar"
    laboratory, _, instruments = fakes()
    with create(path, fake_info()) as file:
        execute_run(file, laboratory, laboratory.clock(), instruments)
    assert b"secret-of-the-fake" not in path.read_bytes()


def test_the_documented_tables_are_the_tables(tmp_path: Path) -> None:
    document = (Path(__file__).parents[2] / "docs" / "run-file.md").read_text()
    path = tmp_path / "a.howfar"
    create(path, fake_info()).close()
    db = sqlite3.connect(path)
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        assert f"| `{table}` |" in document
    db.execute(document.split("```sql")[1].split("```")[0])
    db.close()


# ---------------------------------------------------------------- counters of servers


_SQL = ("Com_select", "Com_insert", "Com_update", "Com_delete", "Com_begin", "Com_commit")


@pytest.mark.parametrize(
    ("older", "metrics"),
    [
        ({}, ServerMetrics()),
        (dict.fromkeys(_SQL, 10) | {"Questions": 90}, ServerMetrics(requests=90, statements=60)),
        (dict.fromkeys(_SQL, 10) | {"Qcache_hits": 5}, ServerMetrics(statements=65)),
        ({"Com_select": 9, "Threads_running": 3}, ServerMetrics(running=3)),
        ({"Calls_get": 7, "Calls_set": 3, "Calls_mget": 2}, ServerMetrics(statements=12)),
        ({"Calls_get": 7, "Calls_set": 3, "Lookup_hits": 6}, ServerMetrics(statements=10, lookup_hits=6)),
        ({"xact_commit": 9, "xact_rollback": 1}, ServerMetrics(commits=9, transactions=10)),
        ({"xact_commit": 9, "client_backends": 4}, ServerMetrics(commits=9, clients=4)),
    ],
)
def test_older_files_have_counters_under_the_names_of_servers(older: dict[str, int], metrics: ServerMetrics) -> None:
    assert server_metrics(older) == metrics


def test_counters_of_the_server_itself_are_no_metrics() -> None:
    assert server_metrics({"requests": 4, "Com_select": 3, "Connections": 2}) == ServerMetrics(requests=4)
