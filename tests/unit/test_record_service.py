"""The drop-in of a recorded service: its text, and its removal whatever process dies. No systemd: a script stands for systemctl."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from howfar.errors import LabError, UsageError
from howfar.recording.recorder import DropIn

TIMEOUT_S = 30.0


def control(tmp_path: Path, code: int = 0) -> list[str]:
    script = tmp_path / "systemctl"
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\nexit {code}\n')
    script.chmod(0o755)
    return [str(script)]


def drop_in(tmp_path: Path, unit: str = "php8.2-fpm", code: int = 0) -> DropIn:
    return DropIn(
        unit, "/run/howfar-x/tap.sock", "/run/mysqld/mysqld.sock", "127.0.0.1:4711", tmp_path, control(tmp_path, code)
    )


def test_it_is_written_and_taken_back_and_systemd_hears_of_both(tmp_path: Path) -> None:
    with drop_in(tmp_path) as written:
        assert written.path == tmp_path / "run/systemd/system/php8.2-fpm.service.d/howfar-record.conf"
        assert written.path.read_text().splitlines()[1:] == [
            "[Service]",
            "BindPaths=/run/howfar-x/tap.sock:/run/mysqld/mysqld.sock",
            "Environment=HOWFAR_MARKS=127.0.0.1:4711",
        ]
        with pytest.raises(UsageError, match="is being recorded"):
            drop_in(tmp_path).__enter__()
    assert not written.path.parent.exists()
    assert (tmp_path / "called").read_text().split("\n") == ["daemon-reload", "daemon-reload", ""]


def test_what_else_is_in_the_folder_stays(tmp_path: Path) -> None:
    other = tmp_path / "run/systemd/system/php8.2-fpm.service.d/other.conf"
    other.parent.mkdir(parents=True)
    other.write_text("[Service]\n")
    with drop_in(tmp_path) as written:
        assert written.path.exists()
    assert [one.name for one in other.parent.iterdir()] == ["other.conf"]


def test_a_kill_takes_it_back(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tests.unit.test_record_service import drop_in\n"
        "with drop_in(Path(sys.argv[1])) as d: print(d.path, flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        path = Path(holder.stdout.readline().strip())
        assert path.exists()
        os.kill(holder.pid, signal.SIGKILL)
    deadline = time.monotonic() + TIMEOUT_S
    while path.parent.exists() or (tmp_path / "called").read_text().count("daemon-reload") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_refusal_takes_it_back(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="daemon-reload"):
        drop_in(tmp_path, code=1).__enter__()
    assert not (tmp_path / "run/systemd/system/php8.2-fpm.service.d").exists()


def test_a_service_without_a_process_is_said(tmp_path: Path) -> None:
    with drop_in(tmp_path) as written, pytest.raises(LabError, match="has no process after its restart"):
        written.restart()


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    for unit in ("", "../../etc/x", "a b"):
        with pytest.raises(UsageError):
            drop_in(tmp_path, unit)
