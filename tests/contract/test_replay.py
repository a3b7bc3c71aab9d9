"""The engine's replay: round trips of recorded sizes and times, against the engine's server that answers them."""

from __future__ import annotations

from pathlib import Path

import pytest

from howfar.contract.messages import (
    AnswerJob,
    NullReady,
    Replayed,
    ReplayJob,
    ReplayPage,
    ReplayStep,
    ServerTls,
    TcpListen,
    TcpTarget,
    Tls,
    UnixTarget,
)
from howfar.engine.process import EngineFailed, EngineProcess
from howfar.lab.certificates import make_certificates

GAP_NS, SERVER_NS = 300_000, 200_000
STEPS = (
    ReplayStep(connection=0, opens=True, gap_ns=GAP_NS, server_ns=SERVER_NS, bytes_to_server=5, bytes_to_client=3),
    ReplayStep(connection=0, gap_ns=GAP_NS, server_ns=SERVER_NS, bytes_to_server=300_000, bytes_to_client=500_000),
    ReplayStep(connection=7, gap_ns=GAP_NS, server_ns=SERVER_NS, bytes_to_server=40, bytes_to_client=120),
)
PAGES = (ReplayPage(steps=STEPS, rest_ns=GAP_NS),) * 2


def run_replay(job: ReplayJob) -> list[Replayed]:
    with EngineProcess(job) as client:
        found = [client.read() for _ in job.pages]
    assert all(isinstance(page, Replayed) for page in found)
    return [page for page in found if isinstance(page, Replayed)]


def check_pages(pages: list[Replayed]) -> None:
    """Check that gaps and service times are at least as requested; a busy machine may add to them."""
    for page in pages:
        assert len(page.round_trips_ns) == len(STEPS)
        assert len(page.opened_ns) == 1
        assert min(page.round_trips_ns) >= SERVER_NS
        assert page.took_ns >= sum(page.round_trips_ns) + sum(page.opened_ns) + 4 * GAP_NS


def test_over_a_socket(tmp_path: Path) -> None:
    where = UnixTarget(path=str(tmp_path / "answers"))
    with EngineProcess(AnswerJob(listen=where)) as server:
        assert isinstance(server.read(), NullReady)
        check_pages(run_replay(ReplayJob(target=where, pages=PAGES)))
    assert not Path(where.path).exists()


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_inside_tls(version: str, tmp_path: Path) -> None:
    files = make_certificates(tmp_path, ("127.0.0.1",))
    proof = {"cert_file": str(files.certificate), "key_file": str(files.key), "versions": version}
    with EngineProcess(AnswerJob(listen=TcpListen(host="127.0.0.1"), tls=ServerTls.model_validate(proof))) as server:
        ready = server.read()
        assert isinstance(ready, NullReady)
        assert ready.port is not None
        target = TcpTarget(host="127.0.0.1", port=ready.port)
        verification = {"verify": "full", "ca_file": str(files.ca), "server_name": "127.0.0.1"}
        check_pages(run_replay(ReplayJob(target=target, tls=Tls.model_validate(verification), pages=PAGES)))
        wrong_name = Tls.model_validate({**verification, "server_name": "elsewhere"})
        with pytest.raises(EngineFailed):
            run_replay(ReplayJob(target=target, tls=wrong_name, pages=PAGES))


def test_a_missing_server_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed):
        run_replay(ReplayJob(target=UnixTarget(path=str(tmp_path / "nobody")), pages=PAGES))
