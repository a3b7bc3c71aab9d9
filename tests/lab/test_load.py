"""`howfar load` and sysbench with the same options on a real server: same counts, same report layout, no password in the output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram

from tests.lab.load_scenario import EVENTS, OTHER_KINDS
from tests.lab.sandboxes import cache_variable, lab_command
from tests.rarely import rarely_but

pytestmark = pytest.mark.usefixtures("namespaces", "mariadb")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seen(cache: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The scenario's runs, with the other workloads that are selected."""
    selected = (item.callspec.params.get("kind") for item in request.session.items if hasattr(item, "callspec"))
    kinds = {kind for kind in selected if kind in OTHER_KINDS}
    folder = tmp_path_factory.mktemp("out")
    scenario = [sys.executable, "-m", "tests.lab.load_scenario", str(folder), *sorted(kinds)]
    done = subprocess.run(
        lab_command("--tables", "2", "--table-size", "1000", "--", *scenario),
        capture_output=True,
        text=True,
        timeout=1100,
        cwd=ROOT,
        env={**os.environ, **cache_variable(cache)},
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def run_of(seen: dict[str, Any], name: str) -> dict[str, Any]:
    """A run of the scenario, checked to have succeeded."""
    run: dict[str, Any] = seen["runs"][name]
    assert run["code"] == 0, run["err"]
    return run


def layout(report: str) -> list[str]:
    """The report's words only: without the first line, numbers and runs of spaces."""
    return [re.sub(r"[\d.]+", "9", re.sub(r" +", " ", line)) for line in report.splitlines()[1:]]


def number(report: str, name: str) -> int:
    match = re.search(rf"^ *{re.escape(name)}:\s+(\d+)", report, flags=re.MULTILINE)
    assert match is not None, report
    return int(match.group(1))


def test_a_sysbench_command_line_gives_the_same_counts_and_layout(seen: dict[str, Any]) -> None:
    if "sysbench" not in seen["runs"]:
        pytest.skip("sysbench is not installed (./setup --tests brings it)")
    ours, theirs = run_of(seen, "as_sysbench")["out"], run_of(seen, "sysbench")["out"]
    assert layout(ours) == layout(theirs)
    counts = ("read", "write", "other", "total", "transactions", "queries", "ignored errors", "total number of events")
    for name in counts:
        assert number(ours, name) == number(theirs, name), name
    assert number(ours, "transactions") == EVENTS


@pytest.mark.parametrize("kind", rarely_but(("oltp_write_only",), OTHER_KINDS))
def test_every_workload_has_as_many_statements_as_sysbenchs(kind: str, seen: dict[str, Any]) -> None:
    """Transactions and statements are equal; the number of rows that an update or delete finds is random."""
    ours = run_of(seen, kind)["out"]
    assert number(ours, "transactions") == EVENTS
    if f"sysbench {kind}" not in seen["runs"]:
        pytest.skip("sysbench is not installed (./setup --tests brings it)")
    theirs = run_of(seen, f"sysbench {kind}")["out"]
    errors = number(ours, "ignored errors") + number(theirs, "ignored errors")
    for name in ("transactions", "total"):
        assert number(ours, name) == number(theirs, name) or errors, name


def test_a_custom_workload(seen: dict[str, Any]) -> None:
    for name in ("prepare", "cleanup"):
        run_of(seen, name)
    for word in ("item", "take", "commit"):
        assert re.search(rf"^{word} ", run_of(seen, "orders")["out"], flags=re.MULTILINE), word
    out = run_of(seen, "orders at a rate")["out"]
    assert "open loop, 200 transactions/s due" in out and "requests due" in out
    assert re.search(r"^response ", out, flags=re.MULTILINE) and re.search(r"^service ", out, flags=re.MULTILINE)


def test_a_search_ends_with_its_highest_rate(seen: dict[str, Any]) -> None:
    lines = [json.loads(line) for line in run_of(seen, "search")["out"].splitlines()]
    found = next(line for line in lines if line["event"] == "search")
    assert found["trials"] and found["kind"] in ("at_least", "found", "unclear", "below")
    for trial in found["trials"]:
        assert trial["why_not"] or trial["observed_ns"] < 1_000_000_000


def test_json_lines_have_all_events(seen: dict[str, Any]) -> None:
    lines = [json.loads(line) for line in run_of(seen, "json")["out"].splitlines()]
    names = [line["event"] for line in lines]
    assert names[:3] == ["job", "ready", "measuring"] and names[-2:] == ["finished", "summary"]
    assert names.count("interval") >= 5
    summary = lines[-1]
    assert summary["transactions"] > 0 and "void" not in summary["stamps"]
    assert {"transaction", "point_select", "commit"} <= set(summary["latency_ns"])
    assert lines[0]["job"]["target"]["kind"] == "unix" and "password" not in lines[0]["job"]


def test_files_for_other_programs(seen: dict[str, Any]) -> None:
    run_of(seen, "files")
    assert "howfar_load_transactions_per_second{" in seen["files"]["x.prom"]
    tagged = [line for line in seen["files"]["x.hlog"].splitlines() if line.startswith("Tag=point_select,")]
    assert len(tagged) == 1
    decoded = HdrHistogram(1, 90_000_000_000_000, 3)
    decoded.decode_and_add(tagged[0].split(",")[4])
    assert decoded.get_total_count() > 0


def test_an_option_file_locates_the_server(seen: dict[str, Any]) -> None:
    out = run_of(seen, "options_file")["out"]
    assert out.startswith("How fast is this server") and "Unix socket" in out and "no TLS; no compression" in out


def test_a_login_that_fails(seen: dict[str, Any]) -> None:
    run = seen["runs"]["wrong_password"]
    assert run["code"] == 11 and "1045" in run["err"]


def test_an_interruption_leaves_no_process(seen: dict[str, Any]) -> None:
    run = seen["runs"]["interrupted"]
    assert run["code"] == 130, run["err"]
    assert "not a result" in run["err"] and "How sure" not in run["out"]
    assert not run["left"]


def test_no_password_in_any_output(seen: dict[str, Any]) -> None:
    secret = seen["password"]
    assert secret
    for name, run in seen["runs"].items():
        if not name.startswith("sysbench"):
            assert secret not in run["out"] + run["err"], name
    assert all(secret not in text for text in seen["files"].values())
