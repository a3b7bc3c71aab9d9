"""`howfar load` with a DSN, on each installed kind of server: TLS and compression are as requested, or the load fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from howfar.lab.servers import DATABASE, USER
from tests.lab import certificates
from tests.lab.howfar_runs import call_howfar
from tests.lab.local_servers import ONE_TABLE, LocalServer

EVENTS = 20


def load(server: LocalServer, **parameters: str) -> tuple[int, list[dict[str, Any]]]:
    """Run a few transactions; returns the exit code and the JSON lines."""
    host, port = server.address
    query = urlencode({name.replace("_", "-"): value for name, value in parameters.items()})
    dsn = f"mysql://{USER}@{host}:{port}/{DATABASE}?{query}"
    tables = [f"--tables={ONE_TABLE.count}", f"--table-size={ONE_TABLE.size}"]
    options = [*tables, f"--events={EVENTS}", "--time=120", "--json"]
    done = call_howfar("load", dsn, "oltp_read_only", *options, env={"HOWFAR_PASSWORD": server.password})
    assert server.password not in done.stdout + done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def receipt(lines: list[dict[str, Any]]) -> dict[str, Any]:
    assert lines[-1]["event"] == "summary" and lines[-1]["mismatches"] == []
    assert lines[-1]["transactions"] == EVENTS
    found: dict[str, Any] = next(line for line in lines if line["event"] == "ready")["receipt"]
    return found


def test_a_session_is_neither_encrypted_nor_compressed_by_default(server: LocalServer) -> None:
    code, lines = load(server)
    assert code == 0, lines[-1]
    seen = receipt(lines)
    assert (seen["tls_version"], seen["compression"]) == (None, None)


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_tls_has_the_requested_version_and_is_verified(
    version: str, server: LocalServer, authority: certificates.Certificates
) -> None:
    code, lines = load(server, ssl_mode="VERIFY_IDENTITY", ssl_ca=str(authority.ca), tls_version=f"TLSv{version}")
    assert code == 0, lines[-1]
    assert receipt(lines)["tls_version"] == f"TLSv{version}"


def test_another_authority_is_refused(server: LocalServer, tmp_path: Path) -> None:
    other = certificates.make_certificates(tmp_path)
    code, lines = load(server, ssl_mode="VERIFY_CA", ssl_ca=str(other.ca))
    assert (code, lines[-1]["event"], lines[-1]["code"]) == (10, "failed", "tls")


def test_compression(server: LocalServer, name: str) -> None:
    code, lines = load(server, compression="zlib")
    assert code == 0, lines[-1]
    assert receipt(lines)["compression"] == "zlib"
    code, lines = load(server, compression="zstd", compression_level="5")
    if name != "mysql":
        assert code == 10 and lines[-1]["event"] == "failed"
    else:
        assert (receipt(lines)["compression"], receipt(lines)["compression_level"]) == ("zstd", 5)
