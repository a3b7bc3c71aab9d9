"""Encryption, compression, connecting and contents as factors of a plan, through the real command, on MariaDB and MySQL.

Each trial's receipt must prove its levels; speeds are not checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from howfar.errors import HowfarError
from howfar.lab.servers import Tables
from howfar.lab.servers.contents import find_rows, row_chunk
from howfar.lab.servers.kinds import find_server
from howfar.plan.factors import Content
from howfar.plan.sessions import session_spec
from howfar.store.records import Run, StopReason, Trial, TrialStatus
from howfar.store.run_file import read_run
from tests.lab.howfar_runs import came_through, known, run_howfar
from tests.lab.servers_here import prepared, short_directory, started
from tests.lab.undisturbed import EMPTY_WINDOW, lasting, skip_if_crowded, skip_if_disturbed

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("namespaces")]
SERVERS = ("mariadb", pytest.param("mysql", marks=pytest.mark.thorough))
ROUNDS = 3
"""Maximum attempts at a run in which this machine makes trials void."""
CONNECTIONS = 2048
PLAN = """
name = "tiny"
question = "Does it come through?"
[workload]
kind = "oltp_read_only"
point_selects = 1
order_ranges = 0
distinct_ranges = 0
skip_trx = true
[data]
tables = 1
table_size = 1000
[factors]
{factors}
rtt = "20ms" # the longer, the more lateness is forgiven: tests may meet a busy machine
rate = "1gbit"
idle = "as-found" # polling is left out where there is no idle driver, with a sentence
[baseline]
{baseline}
[timing]
warmup = "50ms"
measure = "{measure}"
min_blocks = 2
max_blocks = 2
controls = "same" # a pair with one connection is none of the cells that are asked for
target = "0.1%"
time_budget = "30min"
"""


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    try:
        find_server(request.param)
    except HowfarError as error:
        pytest.skip(f"{request.param}: {error.message} {error.advice}")
    return str(request.param)


def measure(
    where: Path,
    cache: Path,
    server: str,
    factors: str,
    baseline: str = 'path = "tcp"',
    length: str = "200ms",
    rounds: int = ROUNDS,
) -> tuple[Run, str]:
    """Run the plan's two blocks; returns the run and the command's stderr."""
    plan, file = where / "tiny.toml", where / "tiny.howfar"
    plan.write_text(PLAN.format(factors=factors, baseline=baseline, measure=length))
    program = str(find_server(server).path)  # a private install lies below the user's cache, not below this one
    arguments = ("run", str(plan), "--server", program, "--out", str(file))
    for _ in range(rounds):
        file.unlink(missing_ok=True)
        done = run_howfar(*arguments, env={"XDG_CACHE_HOME": str(cache)}, cwd=where)
        if done.returncode == 0 and _each_block_of_each_arm(run := read_run(file)):
            break
    came_through(done.returncode, done.stderr)
    run = read_run(file)
    # Where round trips take all the time, two blocks may be alike.
    assert run.stop in (StopReason.BLOCKS, StopReason.WIDTH)
    return run, done.stderr


def _each_block_of_each_arm(run: Run) -> bool:
    """Each arm was measured in each block."""
    there = {(trial.arm, trial.block) for trial in run.trials if trial.status is TrialStatus.OK}
    return len(there) == len(run.info.arms) * len({trial.block for trial in run.trials})


def good(run: Run, **levels: object) -> list[Trial]:
    """Good trials of the arms that have these levels; at least one in each block."""
    arms = {arm.name for arm in run.info.arms if levels.items() <= arm.factors.items()}
    found = [trial for trial in run.trials if trial.arm in arms and trial.status is TrialStatus.OK]
    reasons = [trial.void_reason for trial in run.trials if trial.arm in arms]
    if {trial.block for trial in found} != {0, 1}:
        skip_if_disturbed(*reasons)
    assert {trial.block for trial in found} == {0, 1}, reasons
    return found


@pytest.mark.thorough
def test_each_cell_is_encrypted_as_it_asks(server: str, cache: Path, tmp_path: Path) -> None:
    run, _ = measure(
        tmp_path,
        cache,
        server,
        'path = "remote"\nthreads = 1\ntls = ["off", "1.2", "1.3", "1.3-resumed"]\nconnect = "per-transaction"',
        'tls = "off"',
    )
    fastest: dict[str, float] = {}
    for level in ("off", "1.2", "1.3", "1.3-resumed"):
        for trial in good(run, tls=level):
            session, proof = known(trial.receipt.session), known(trial.receipt.server)
            version = session_spec({"tls": level}).tls_version
            assert session.tls_version == session.tls_client_version == version
            assert known(proof.session_view).ssl_version == (version or "")
            assert (proof.certificate is not None) == (version is not None)
            assert session.tls_resumed is (None if version is None else level == "1.3-resumed")
            assert trial.measured is not None
            assert proof.counters["connections"] > trial.measured.transactions
            # A resumed session remembers which key share the server took.
            retried = level == "1.3" and session.tls_retried
            extra = {"off": 0, "1.2": 2}.get(level, 2 if retried else 1)
            assert session.connect_turns == 4 + extra, "TCP, greeting, login, prepares, and TLS by its version"
            took = min(h.min_ns for h in trial.measured.histograms if h.kind == "connect")
            rounds = took / known(known(trial.receipt.link).rest_rtt_ns)
            assert rounds > session.connect_turns - 0.5, "no connect is faster than its round trips"
            fastest[level] = min(fastest.get(level, rounds), rounds)
            with skip_if_crowded(trial):
                assert fastest[level] < session.connect_turns + 0.9 or trial.block == 0, "in one of its trials"


@pytest.mark.thorough
def test_each_cell_is_compressed_as_it_asks_or_left_out(server: str, cache: Path, tmp_path: Path) -> None:
    factors = 'path = "tcp"\ncompression = ["off", "zlib", "zstd-1"]\ncontent = ["text", "incompressible"]'
    run, output = measure(tmp_path, cache, server, factors, 'compression = "off"\ncontent = "text"')
    sent = {}
    for level in ("off", "zlib"):
        for content in ("text", "incompressible"):
            trials = good(run, compression=level, content=content)
            asked = None if level == "off" else level
            assert {known(trial.receipt.session).compression for trial in trials} == {asked}
            assert {known(trial.receipt.server).content for trial in trials} == {content}
            counters = [known(trial.receipt.server).counters for trial in trials]
            sent[level, content] = sum(c["bytes_sent"] for c in counters) / sum(
                c["Com_select"] or c["requests"] for c in counters
            )
    assert sent["zlib", "text"] < 0.7 * sent["off", "text"], "0.41 of the rows and all of what is around them"
    assert sent["zlib", "incompressible"] > 0.9 * sent["off", "incompressible"]
    if server == "mysql":
        found = good(run, compression="zstd-1")
        assert {known(trial.receipt.session).compression_level for trial in found} == {1}
        assert run.info.environment.not_as_requested == []
    else:
        (sentence,) = run.info.environment.not_as_requested
        assert sentence.startswith("left out: compression zstd-1: mariadb") and sentence in output
        assert not any("zstd" in arm.name for arm in run.info.arms)


def test_a_plan_of_which_a_server_can_nothing_is_refused(cache: Path, tmp_path: Path) -> None:
    plan = tmp_path / "tiny.toml"
    plan.write_text(PLAN.format(factors='path = "tcp"\ncompression = "zstd"', baseline='path = "tcp"', measure="1s"))
    done = run_howfar("run", str(plan), "--server", "mariadb", env={"XDG_CACHE_HOME": str(cache)}, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "asks for compression zstd only" in done.stderr and "has no zstd" in done.stderr


@pytest.mark.thorough
def test_a_run_of_such_cells_goes_on(cache: Path, tmp_path: Path) -> None:
    factors = 'path = "tcp"\ntls = "1.3"\ncompression = ["off", "zlib", "zstd"]\ncontent = "text"'
    run, _ = measure(tmp_path, cache, "mariadb", factors, 'compression = "off"')
    done = run_howfar(
        "resume",
        str(tmp_path / "tiny.howfar"),
        "--time-budget",
        "60s",
        env={"XDG_CACHE_HOME": str(cache)},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    after = read_run(tmp_path / "tiny.howfar")
    assert after.info.arms == run.info.arms
    assert len(after.trials) > len(run.trials)
    assert after.trials[: len(run.trials)] == run.trials
    added = after.trials[len(run.trials) :]
    assert set(lasting(trial.void_reason for trial in added if trial.void_reason)) <= {EMPTY_WINDOW}
    assert any(trial.status is TrialStatus.OK for trial in added)


@pytest.mark.parametrize("content", ["digits", "text", "incompressible"])
def test_every_byte_of_a_content_comes_back(server: str, content: Content, tmp_path: Path) -> None:
    """Including tabs, line ends, quotes, zeros and backslashes: random bytes contain them all."""
    tables = Tables(2, 1000, (content,))
    expected = []
    for line in row_chunk(find_rows(content), 1, tables.size, tables.size).split(b"\n")[:-1]:
        _, _, c, pad = line.split(b"\t")
        expected.append(tuple(bytes.fromhex(v.decode()) if content == "incompressible" else v for v in (c, pad)))
    if content == "incompressible":
        assert {0, 9, 10, 13, 34, 39, 92} <= set(b"".join(c for c, _ in expected))
    with started(prepared(server, short_directory(tmp_path), tables=tables)) as running:
        for table in ("sbtest1", "sbtest2"):
            rows = running.execute(f"SELECT HEX(c) AS c, HEX(pad) AS pad FROM {table} ORDER BY id")
            assert [tuple(bytes.fromhex(str(row[name])) for name in ("c", "pad")) for row in rows] == expected
        ordered = running.execute("SELECT DISTINCT HEX(c) AS c FROM sbtest1 WHERE id BETWEEN 1 AND 100 ORDER BY c")
        assert len(ordered) == 100


@pytest.mark.thorough
def test_two_thousand_connections_are_let_in(server: str, cache: Path, tmp_path: Path) -> None:
    run, _ = measure(
        tmp_path,
        cache,
        server,
        f'path = "remote"\nthreads = {CONNECTIONS}',
        f"threads = {CONNECTIONS}",
        length="2s",
        rounds=1,
    )
    capacity = known(run.info.environment.capacity).as_json()
    assert capacity["descriptors"] > CONNECTIONS
    assert min(capacity["client_somaxconn"], capacity["server_somaxconn"]) >= CONNECTIONS
    for trial in run.trials:
        skip_if_disturbed(trial.void_reason if trial.measured is None else None)
        assert trial.measured is not None, trial.void_reason
        proof = known(trial.receipt.server)
        assert known(proof.listen_queue) >= CONNECTIONS
        assert int(str(proof.facts["max_connections"])) > CONNECTIONS
        assert int(str(proof.facts["max_prepared_stmt_count"])) == 1_000_000
        assert proof.counters["connections"] >= CONNECTIONS
        assert proof.counters["Aborted_connects"] == 0
