"""Encryption, compression, connecting and contents as factors of a plan, through the real command, on MariaDB and MySQL.

Each trial's receipt proves its levels. Speeds are not checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from howfar.lab.servers import Tables
from howfar.lab.servers.contents import find_rows, row_chunk
from howfar.lab.servers.kinds import find_server
from howfar.plan.factors import Content
from howfar.plan.sessions import session_spec
from howfar.store.records import Run, StopReason, Trial, TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import (
    LONG_RTT,
    ONE_TABLE,
    assert_completed,
    good_trials,
    plan_toml,
    require,
    run_howfar,
    timing,
)
from tests.lab.local_servers import require_server, run_server
from tests.lab.undisturbed import EMPTY_WINDOW, skip_if_busy, skip_if_disturbed, unexcused

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
SERVERS = ("mariadb", pytest.param("mysql", marks=pytest.mark.thorough))
ROUNDS = 3
"""Maximum attempts at a run whose trials are void because this machine is busy."""
CONNECTIONS = 2048


def make_plan(factors: Mapping[str, object], baseline: Mapping[str, object], length: str = "200ms") -> str:
    """A plan without polling, which is left out where there is no idle driver."""
    return plan_toml(
        workload={
            "kind": "oltp_read_only",
            "point_selects": 1,
            "order_ranges": 0,
            "distinct_ranges": 0,
            "skip_trx": True,
        },
        data=ONE_TABLE,
        factors={**factors, "rtt": LONG_RTT, "rate": "1gbit", "idle": "as-found"},
        baseline=baseline,
        timing=timing(2, "50ms", length, controls="same"),  # a control with one connection would add another cell
    )


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    require_server(request.param)
    return str(request.param)


def measure(where: Path, cache: Path, server: str, plan_text: str, rounds: int = ROUNDS) -> tuple[Run, str]:
    """Run a plan of two blocks; returns the run and the command's stderr."""
    plan, file = where / "tiny.toml", where / "tiny.howfar"
    plan.write_text(plan_text)
    program = str(find_server(server).path)  # the tests' cache has no private installs
    arguments = ("run", str(plan), "--server", program, "--out", str(file))
    for _ in range(rounds):
        file.unlink(missing_ok=True)
        done = run_howfar(*arguments, cache=cache, cwd=where)
        if done.returncode == 0 and _is_complete(run := read_run(file)):
            break
    assert_completed(done.returncode, done.stderr)
    run = read_run(file)
    # If round trips take all the time, two blocks may agree within the target.
    assert run.stop in (StopReason.BLOCKS, StopReason.WIDTH)
    return run, done.stderr


def _is_complete(run: Run) -> bool:
    """Whether each arm has a good trial in each block."""
    measured = {(trial.arm, trial.block) for trial in good_trials(run)}
    return len(measured) == len(run.info.arms) * len({trial.block for trial in run.trials})


def trials_with(run: Run, **levels: object) -> list[Trial]:
    """The good trials of the arms that have these levels: at least one in each block."""
    arms = {arm.name for arm in run.info.arms if levels.items() <= arm.factors.items()}
    found = [trial for trial in good_trials(run) if trial.arm in arms]
    reasons = [trial.void_reason for trial in run.trials if trial.arm in arms]
    if {trial.block for trial in found} != {0, 1}:
        skip_if_disturbed(*reasons)
    assert {trial.block for trial in found} == {0, 1}, reasons
    return found


@pytest.mark.thorough
def test_each_cell_is_encrypted_as_requested(server: str, cache: Path, tmp_path: Path) -> None:
    tls_levels = ["off", "1.2", "1.3", "1.3-resumed"]
    factors = {"path": "remote", "threads": 1, "tls": tls_levels, "connect": "per-transaction"}
    run, _ = measure(tmp_path, cache, server, make_plan(factors, {"tls": "off"}))
    fastest: dict[str, float] = {}
    for level in tls_levels:
        for trial in trials_with(run, tls=level):
            session, proof = require(trial.receipt.session), require(trial.receipt.server)
            version = session_spec({"tls": level}).tls_version
            assert session.tls_version == session.tls_client_version == version
            assert require(proof.session_view).ssl_version == (version or "")
            assert (proof.certificate is not None) == (version is not None)
            assert session.tls_resumed is (None if version is None else level == "1.3-resumed")
            assert trial.measured is not None
            assert proof.counters["connections"] > trial.measured.transactions
            # The client of a resumed session knows which key share the server accepts.
            retried = level == "1.3" and session.tls_retried
            extra = {"off": 0, "1.2": 2}.get(level, 2 if retried else 1)
            assert session.connect_turns == 4 + extra, (
                "TCP, greeting, login, prepares, and TLS according to its version"
            )
            took = min(h.min_ns for h in trial.measured.histograms if h.kind == "connect")
            rounds = took / require(require(trial.receipt.link).rest_rtt_ns)
            assert rounds > session.connect_turns - 0.5, "a connect takes at least its round trips"
            fastest[level] = min(fastest.get(level, rounds), rounds)
            with skip_if_busy(trial):
                assert fastest[level] < session.connect_turns + 0.9 or trial.block == 0, (
                    "the fastest connect of a level takes hardly more than its round trips"
                )


@pytest.mark.thorough
def test_each_cell_is_compressed_as_requested_or_left_out(server: str, cache: Path, tmp_path: Path) -> None:
    factors = {"path": "tcp", "compression": ["off", "zlib", "zstd-1"], "content": ["text", "incompressible"]}
    plan = make_plan(factors, {"compression": "off", "content": "text"})
    run, output = measure(tmp_path, cache, server, plan)
    sent = {}
    for level in ("off", "zlib"):
        for content in ("text", "incompressible"):
            trials = trials_with(run, compression=level, content=content)
            expected = None if level == "off" else level
            assert {require(trial.receipt.session).compression for trial in trials} == {expected}
            assert {require(trial.receipt.server).content for trial in trials} == {content}
            counters = [require(trial.receipt.server).counters for trial in trials]
            sent[level, content] = sum(c["bytes_sent"] for c in counters) / sum(
                c["Com_select"] or c["requests"] for c in counters
            )
    assert sent["zlib", "text"] < 0.7 * sent["off", "text"], "rows shrink to 0.41, and the rest does not"
    assert sent["zlib", "incompressible"] > 0.9 * sent["off", "incompressible"]
    if server == "mysql":
        found = trials_with(run, compression="zstd-1")
        assert {require(trial.receipt.session).compression_level for trial in found} == {1}
        assert run.info.environment.not_as_requested == []
    else:
        (sentence,) = run.info.environment.not_as_requested
        assert sentence.startswith("left out: compression zstd-1: mariadb") and sentence in output
        assert not any("zstd" in arm.name for arm in run.info.arms)


def test_a_plan_without_a_level_that_the_server_supports_is_refused(cache: Path, tmp_path: Path) -> None:
    plan = tmp_path / "tiny.toml"
    plan.write_text(make_plan({"path": "tcp", "compression": "zstd"}, {"path": "tcp"}, "1s"))
    done = run_howfar("run", str(plan), "--server", "mariadb", cache=cache, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "asks for compression zstd only" in done.stderr and "has no zstd" in done.stderr


@pytest.mark.thorough
def test_a_run_of_session_factors_is_resumed(cache: Path, tmp_path: Path) -> None:
    factors = {"path": "tcp", "tls": "1.3", "compression": ["off", "zlib", "zstd"], "content": "text"}
    run, _ = measure(tmp_path, cache, "mariadb", make_plan(factors, {"compression": "off"}))
    file = tmp_path / "tiny.howfar"
    done = run_howfar("resume", str(file), "--time-budget", "60s", cache=cache, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = read_run(file)
    assert after.info.arms == run.info.arms
    assert len(after.trials) > len(run.trials)
    assert after.trials[: len(run.trials)] == run.trials
    added = after.trials[len(run.trials) :]
    assert set(unexcused(trial.void_reason for trial in added if trial.void_reason)) <= {EMPTY_WINDOW}
    assert any(trial.status is TrialStatus.OK for trial in added)


@pytest.mark.parametrize("content", ["digits", "text", "incompressible"])
def test_the_tables_contain_every_byte_of_their_content(server: str, content: Content, tmp_path: Path) -> None:
    """Tabs, line ends, quotes, zeros and backslashes are included: the incompressible content has them all."""
    tables = Tables(2, 1000, (content,))
    expected = []
    for line in row_chunk(find_rows(content), 1, tables.size, tables.size).split(b"\n")[:-1]:
        _, _, c, pad = line.split(b"\t")
        expected.append(tuple(bytes.fromhex(v.decode()) if content == "incompressible" else v for v in (c, pad)))
    if content == "incompressible":
        assert {0, 9, 10, 13, 34, 39, 92} <= set(b"".join(c for c, _ in expected))
    with run_server(server, tmp_path, tables=tables) as running:
        for table in ("sbtest1", "sbtest2"):
            rows = running.execute(f"SELECT HEX(c) AS c, HEX(pad) AS pad FROM {table} ORDER BY id")
            assert [tuple(bytes.fromhex(str(row[name])) for name in ("c", "pad")) for row in rows] == expected
        ordered = running.execute("SELECT DISTINCT HEX(c) AS c FROM sbtest1 WHERE id BETWEEN 1 AND 100 ORDER BY c")
        assert len(ordered) == 100


@pytest.mark.thorough
def test_two_thousand_connections_are_accepted(server: str, cache: Path, tmp_path: Path) -> None:
    plan = make_plan({"path": "remote", "threads": CONNECTIONS}, {"threads": CONNECTIONS}, "2s")
    run, _ = measure(tmp_path, cache, server, plan, rounds=1)
    capacity = require(run.info.environment.capacity).as_json()
    assert capacity["descriptors"] > CONNECTIONS
    assert min(capacity["client_somaxconn"], capacity["server_somaxconn"]) >= CONNECTIONS
    for trial in run.trials:
        skip_if_disturbed(trial.void_reason if trial.measured is None else None)
        assert trial.measured is not None, trial.void_reason
        proof = require(trial.receipt.server)
        assert require(proof.listen_queue) >= CONNECTIONS
        assert int(str(proof.facts["max_connections"])) > CONNECTIONS
        assert int(str(proof.facts["max_prepared_stmt_count"])) == 1_000_000
        assert proof.counters["connections"] >= CONNECTIONS
        assert proof.counters["Aborted_connects"] == 0
