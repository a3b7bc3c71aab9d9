"""Compressed sessions as a factor of a plan: its levels, what the engine is asked for, and what servers and paths do not support."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.made import build
from tests.shipped import load_shipped
from tests.unit.fake_lab import FakeStage

from howfar.contract.messages import Compression, UnixTarget
from howfar.contract.server_receipt import SessionReceipt
from howfar.errors import PlanError
from howfar.experiments.network import preflight as network_preflight
from howfar.experiments.network.factors import COMPRESSION, requested_compression
from howfar.lab.servers.features import Features
from howfar.paths import ClientEndpoint
from howfar.plan.factors import FACTORS, hiding_levels, saves_bytes
from howfar.plan.load import load_plan
from howfar.plan.sessions import SessionSpec, session_spec
from howfar.runner import preflight
from howfar.runner.loads.transactions import TransactionLoad
from howfar.runner.preflight import _check_paths, unsupported_by_server
from howfar.store.records import Arm, ArmRole


@pytest.mark.parametrize(
    ("level", "request_"),
    [
        ("off", None),
        ("zlib", Compression(algorithm="zlib", level=None)),
        ("zlib-9", Compression(algorithm="zlib", level=9)),
        ("zstd-19", Compression(algorithm="zstd", level=19)),
    ],
)
def test_a_level_requests_an_algorithm_and_its_level(level: str, request_: Compression | None) -> None:
    assert requested_compression(level) == request_
    expected = SessionSpec(settings={} if request_ is None else {"compression": request_})
    assert session_spec({"path": "tcp", "compression": level}) == expected


@pytest.mark.parametrize("level", ["on", "zlib-0", "zlib-10", "zstd-23", "zstd-77", "lz4", ""])
def test_an_unknown_level_is_refused_with_its_line(tmp_path: Path, level: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        f'name = "mine"\nquestion = "?"\n[workload]\n[factors]\npath = "tcp"\ncompression = "{level}"\n[baseline]\n'
    )
    with pytest.raises(PlanError) as caught:
        load_plan(str(path))
    assert caught.value.message.startswith(f"{path}:6: factors.compression = '{level}': compression must be off, zlib")


def test_the_engine_is_asked_for_it() -> None:
    def session(**levels: str) -> Compression | None:
        arm = Arm(name="it", role=ArmRole.CONTENDER, factors={"path": "socket", "threads": 3, **levels})
        plan = load_plan("paths", quick=True).plan
        return TransactionLoad.make_job(plan, arm, FakeStage(UnixTarget(path="/s")), 1).session.compression

    assert session() is None and session(compression="off") is None
    assert session(compression="zstd-9") == Compression(algorithm="zstd", level=9)


@pytest.mark.parametrize(
    ("level", "obtained", "expected"),
    [
        ("off", None, None),
        ("zstd-3", "zstd", None),
        ("zstd-3", None, ("none", "zstd")),
        ("zlib", "zstd", ("zstd", "zlib")),
        ("off", "zlib", ("zlib", "none")),
    ],
)
def test_a_session_is_compressed_as_its_cell_says_whatever_the_job_requested(
    level: str, obtained: str | None, expected: tuple[str, str] | None
) -> None:
    endpoint = ClientEndpoint(socket="/s", peer_pid=7)
    session = build(SessionReceipt, address_family="unix", peer_address="/s", peer_pid=7, compression=obtained)
    violations = session.violations(endpoint, session_spec({"path": "socket", "compression": level}))
    differences = [] if expected is None else [("session-compression", *expected)]
    assert [(each.id, *each.parameters.values()) for each in violations] == differences


@pytest.mark.parametrize(
    ("algorithms", "reasons"),
    [
        (("zlib", "zstd"), {}),
        (
            ("zlib",),
            dict.fromkeys(("zstd-1", "zstd-3", "zstd-9"), "mariadb 11.4 has no zstd, only zlib"),
        ),
        (
            (),
            {"zlib": "mariadb 11.4 has no zlib, its protocol has no compression"}
            | dict.fromkeys(
                ("zstd-1", "zstd-3", "zstd-9"), "mariadb 11.4 has no zstd, its protocol has no compression"
            ),
        ),
    ],
)
def test_levels_that_a_server_lacks_have_a_reason(
    monkeypatch: pytest.MonkeyPatch, algorithms: tuple[str, ...], reasons: dict[str, str]
) -> None:
    program: Any = SimpleNamespace(kind="mariadb", version="11.4")
    features = Features(tls=None, compression=algorithms, semi_sync=False, clone=False, group_replication=False)
    monkeypatch.setattr(network_preflight, "find_server", lambda name: program)
    monkeypatch.setattr(network_preflight, "find_features", lambda found: features)
    assert unsupported_by_server(load_shipped("compression").plan)["compression"] == reasons


def test_a_plan_without_it_asks_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_preflight, "find_server", lambda name: pytest.fail("a server was looked for"))
    assert "compression" not in unsupported_by_server(load_plan("paths").plan)


def test_a_path_that_reads_the_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check_programs", lambda path: None)
    plan = load_plan("paths").plan
    levels = {"path": ("remote", "pgbouncer"), "compression": ("zlib",), "tls": ("1.3",)}
    workload = plan.workload.model_copy(update={"db_ps_mode": "disable"})
    changed = plan.model_copy(update={"factors": plan.factors.model_copy(update=levels), "workload": workload})
    with pytest.raises(PlanError, match=r"pgbouncer reads what it carries, .* by TLS 1\.3 and zlib"):
        _check_paths(changed)


def test_cells_that_save_bytes_or_hide_the_protocol_are_known() -> None:
    assert not saves_bytes({"path": "tcp"}) and saves_bytes({"path": "tcp", "compression": "zlib"})
    assert hiding_levels({"path": "tcp", "compression": "off"}) == []
    assert hiding_levels({"path": "tcp", "compression": "zstd-1"}) == ["zstd-1"]


def test_it_keeps_its_place_among_the_levels_of_a_cell() -> None:
    names = list(FACTORS)
    assert names[names.index("tls") + 1 : names.index("connect")] == [COMPRESSION.name]
