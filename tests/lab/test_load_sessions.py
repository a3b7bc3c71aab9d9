"""`howfar load` by DSN to each installed kind of server: TLS and compression are as requested, or the load fails."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from howfar.lab.servers import DATABASE, USER
from tests.lab import certificates
from tests.lab.load_scenario import HOWFAR
from tests.lab.servers_here import ONE_TABLE, Running

EVENTS = 20


def load(running: Running, **parameters: str) -> tuple[int, list[dict[str, Any]]]:
    """Run a few transactions; returns the exit code and the JSON lines."""
    host, port = running.address
    dsn = (
        f"mysql://{USER}@{host}:{port}/{DATABASE}?{urlencode({k.replace('_', '-'): v for k, v in parameters.items()})}"
    )
    options = [
        f"--tables={ONE_TABLE.count}",
        f"--table-size={ONE_TABLE.size}",
        f"--events={EVENTS}",
        "--time=120",
        "--json",
    ]
    done = subprocess.run(
        [*HOWFAR, dsn, "oltp_read_only", *options],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HOWFAR_PASSWORD": running.password},
    )
    assert running.password not in done.stdout + done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def receipt(lines: list[dict[str, Any]]) -> dict[str, Any]:
    assert lines[-1]["event"] == "summary" and lines[-1]["mismatches"] == []
    assert lines[-1]["transactions"] == EVENTS
    found: dict[str, Any] = next(line for line in lines if line["event"] == "ready")["receipt"]
    return found


def test_nothing_is_encrypted_or_packed_unless_asked(running: Running) -> None:
    code, lines = load(running)
    assert code == 0, lines[-1]
    seen = receipt(lines)
    assert (seen["tls_version"], seen["compression"]) == (None, None)


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_tls_is_of_the_version_asked_for_and_verified(
    version: str, running: Running, authority: certificates.Certificates
) -> None:
    code, lines = load(running, ssl_mode="VERIFY_IDENTITY", ssl_ca=str(authority.ca), tls_version=f"TLSv{version}")
    assert code == 0, lines[-1]
    assert receipt(lines)["tls_version"] == f"TLSv{version}"


def test_another_authority_is_refused(running: Running, tmp_path: Path) -> None:
    other = certificates.make(tmp_path)
    code, lines = load(running, ssl_mode="VERIFY_CA", ssl_ca=str(other.ca))
    assert (code, lines[-1]["event"], lines[-1]["code"]) == (5, "failed", "tls")


def test_compression(running: Running, name: str) -> None:
    code, lines = load(running, compression="zlib")
    assert code == 0, lines[-1]
    assert receipt(lines)["compression"] == "zlib"
    code, lines = load(running, compression="zstd", compression_level="5")
    if name != "mysql":
        assert code == 5 and lines[-1]["event"] == "failed"
    else:
        assert (receipt(lines)["compression"], receipt(lines)["compression_level"]) == ("zstd", 5)
