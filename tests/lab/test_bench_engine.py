"""`howfar bench engine` with each peer. Figures are not checked: test machines are busy."""

from __future__ import annotations

import shutil

import pytest

from howfar.bench.comparison import Comparison
from tests.lab.howfar_runs import run_howfar

pytestmark = [pytest.mark.lab]


@pytest.mark.parametrize(
    ("peer", "server", "connections"),
    [
        ("sysbench", "mariadb", [1, 16]),
        pytest.param("pgbench", "postgresql", [16], marks=pytest.mark.thorough),
        ("bare", "mariadb", [1]),
    ],
)
def test_it_compares_with_a_peer(
    peer: str, server: str, connections: list[int], request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(server)
    if peer != "bare" and shutil.which(peer) is None:
        pytest.skip(f"{peer} is not installed (./setup --tests brings it)")
    options = ["--connections", ",".join(map(str, connections)), "--blocks", "4", "--seconds", "0.2", "--json"]
    done = run_howfar("bench", "engine", "--against", peer, *options)
    assert done.returncode == 0, done.stderr
    found = Comparison.model_validate_json(done.stdout)
    assert [row.connections for row in found.rows] == connections
    for row in found.rows:
        for side in (row.ours, row.peer):
            assert min(side.client_cpu_us_per_query, side.qps, side.rss_mib) > 0
            assert side.whole_process_cpu_us_per_query > 0
        assert row.cpu_ratio.low is not None and row.cpu_ratio.high is not None
