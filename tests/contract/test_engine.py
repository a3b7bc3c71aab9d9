"""The engine's subcommands with good and bad jobs."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

import howfar
from howfar.contract.messages import PROTOCOL_VERSION, Begin, Failed, Info, Observed, UsageJob
from howfar.engine.process import engine_info, find_engine

SCHEMAS = Path(__file__).parents[2] / "schema"
REFUSED = sorted((SCHEMAS / "examples" / "refused").glob("*.json"))
TIMEOUT_S = 60


def engine(subcommand: str, stdin: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([find_engine(), subcommand], input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S)


def only_event(done: subprocess.CompletedProcess[str]) -> Failed:
    assert len(done.stdout.splitlines()) == 1, (done.stdout, done.stderr)
    return Failed.model_validate_json(done.stdout)


def test_handshake() -> None:
    done = engine("info", "")
    assert done.returncode == 0
    info = Info.model_validate_json(done.stdout)
    assert info == engine_info()
    assert (info.version, info.protocol) == (howfar.__version__, PROTOCOL_VERSION)


def test_unknown_subcommand_is_a_usage_error() -> None:
    done = engine("dance", "")
    assert done.returncode == 2
    assert "usage" in done.stderr


@pytest.mark.parametrize("example", REFUSED, ids=lambda path: path.stem)
def test_bad_job_is_refused_with_a_reason(example: Path) -> None:
    held = json.loads(example.read_text())
    failed = only_event(engine(held["job"], json.dumps(held) + "\n"))
    assert failed.code == "bad_job"
    assert failed.message


@pytest.mark.parametrize(
    "subcommand", ["load", "tables", "watch", "link", "echo", "rtt", "goodput", "null", "pingpong"]
)
@pytest.mark.parametrize("text", ["", "\n", "{", "[]", "null", '{"job": "dance"}', "\x00\x01"], ids=repr)
def test_text_that_is_not_a_job_is_refused(subcommand: str, text: str) -> None:
    failed = only_event(engine(subcommand, text))
    assert failed.code == "bad_job"
    assert failed.message


@pytest.mark.parametrize(
    ("subcommand", "other"),
    [
        ("load", "rtt"),
        ("tables", "load.unix"),
        ("watch", "tables"),
        ("link", "rtt"),
        ("rtt", "link"),
        ("echo", "load.unix"),
        ("null", "pingpong"),
        ("ping", "load.unix"),
    ],
)
def test_a_job_of_another_kind_is_refused(subcommand: str, other: str) -> None:
    job = json.loads((SCHEMAS / "examples" / f"job.{other}.json").read_text())
    assert only_event(engine(subcommand, json.dumps(job) + "\n")).code == "bad_job"


GOOD = sorted((SCHEMAS / "examples").glob("job.*.json"))


@pytest.mark.parametrize("example", GOOD, ids=lambda path: path.stem)
def test_a_good_job_is_accepted(example: Path) -> None:
    """The examples' ports, interfaces and files do not exist, so accepted jobs fail later."""
    held = json.loads(example.read_text())
    done = engine(held["job"], json.dumps(held) + "\n")
    if held["job"] == "ping":
        assert (done.returncode, done.stdout) == (0, ""), "without a command it does nothing and ends with its stdin"
        return
    assert done.stdout, done.stderr
    event = json.loads(done.stdout.splitlines()[0])
    if held["job"] == "packets":
        # It reports that it is ready before it opens its input, which may be a pipe without a writer.
        assert event["event"] == "tap_ready" and json.loads(done.stdout.splitlines()[-1])["event"] == "failed"
    elif held["job"] in ("echo", "null", "tap", "record"):
        assert event["event"] in ("listening", "null_ready", "tap_ready")
        assert done.returncode == 0, "it ends with its stdin"
    elif held["job"] == "digests":
        assert event["event"] == "digests", "the job needs no server"
    else:
        failed = Failed.model_validate(event)
        missing = (".pem", "when to begin")
        assert failed.code in {"connect", "interface", "not_permitted"} or any(
            word in failed.message for word in missing
        ), event


def test_a_held_job_begins_at_the_command_and_reports_its_lateness() -> None:
    job = UsageJob(observe=(Observed(role="server", pid=os.getpid()),), warmup_ns=0, measure_ns=1_000_000)
    at_ns = time.monotonic_ns()
    done = engine("usage", f"{job.model_dump_json()}\n{Begin(at_ns=at_ns).model_dump_json()}\n")
    begun, used = (json.loads(line) for line in done.stdout.splitlines())
    assert begun["at_ns"] - begun["late_ns"] == at_ns and begun["late_ns"] > 0, "the requested moment is in the past"
    assert [one["role"] for one in used["cpu"]] == ["server"]
