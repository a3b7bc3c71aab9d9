"""A trial's receipt as types: a misspelt field is a type error, and receipts of all versions stay as they were."""

from __future__ import annotations

import json
import lzma
import os
import sqlite3
import sys
from pathlib import Path
from subprocess import run

import pytest
from pydantic import ValidationError

from howfar.contract.receipt import InjectedFault, LinkReceipt, QuantilesNs, ReplicationReceipt, TrialReceipt
from howfar.contract.replication_receipt import RequestedReplication
from howfar.contract.server_receipt import ServerReceipt

ROOT = Path(__file__).parents[2]
STORED = sorted((ROOT / "tests" / "data").glob("*/*.howfar.xz"))
PROGRAM = """
from howfar.contract.receipt import LinkReceipt, QuantilesNs, TrialReceipt

def rtt_ns(receipt: TrialReceipt) -> int | None:
    return None if receipt.link is None else receipt.link.{attribute}

written = LinkReceipt({keyword}=7, rtt_at_rest_ns=QuantilesNs(p50=1))
written.{assigned} = 3
"""
RIGHT = {"attribute": "rest_rtt_ns", "keyword": "compensate_ns", "assigned": "mtu"}
PARTS = {
    "RequestedReplication": ("receipt.replication.requested", "wait_for"),
    "ChannelFacts": ("receipt.replication.channel", "wire_bytes"),
    "InjectedFault": ("receipt.replication.fault", "failover_ns"),
    "StandbyState": ("receipt.replication.window.after.primary.standbys[0]", "sync_state"),
    "StoreAddress": ("receipt.server.listen_address", "plain"),
    "PagesReceipt": ("receipt.application.proof", "reported"),
    "PersistentClients": ("receipt.application.after", "seen"),
}
"""Parts that only one experiment or one kind of server has: where they are, and a field of each."""


@pytest.mark.slow
def test_a_misspelt_field_is_a_type_error(tmp_path: Path) -> None:
    def check(**spelling: str) -> str:
        file = tmp_path / "program.py"
        file.write_text(PROGRAM.format(**{**RIGHT, **spelling}))
        command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(file)]
        return run(command, cwd=ROOT, env={**os.environ, "MYPYPATH": "python"}, capture_output=True, text=True).stdout

    assert "Success" in check()
    assert '"LinkReceipt" has no attribute "rest_rtt"' in check(attribute="rest_rtt")
    assert 'Unexpected keyword argument "compensation_ns"' in check(keyword="compensation_ns")
    assert '"LinkReceipt" has no attribute "mtu_bytes"' in check(assigned="mtu_bytes")


@pytest.mark.slow
def test_a_misspelt_field_of_each_part_is_a_type_error(tmp_path: Path) -> None:
    def check(ending: str) -> str:
        lines = ["from howfar.contract.receipt import TrialReceipt", "def read(receipt: TrialReceipt) -> None:"]
        for part, field in PARTS.values():
            names = part.split(".")
            optional = (".".join(names[:count]) for count in range(2, len(names) + 1))
            lines += [f"    assert {name}" for name in optional if not name.endswith("]")]
            lines.append(f"    print({part}.{field}{ending})")
        file = tmp_path / "program.py"
        file.write_text("\n".join(lines) + "\n")
        command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(file)]
        return run(command, cwd=ROOT, env={**os.environ, "MYPYPATH": "python"}, capture_output=True, text=True).stdout

    assert "Success" in check("")
    errors = check("_x")
    for kind, (_, field) in PARTS.items():
        assert f'"{kind}" has no attribute "{field}_x"' in errors
    assert f"Found {len(PARTS)} errors" in errors


@pytest.mark.parametrize("stored", STORED, ids=lambda path: str(path.name).partition(".")[0])
def test_a_stored_receipt_is_read_and_written_unchanged(stored: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.howfar"
    file.write_bytes(lzma.decompress(stored.read_bytes()))
    receipts = [json.loads(text) for (text,) in sqlite3.connect(file).execute("SELECT receipt FROM trial")]
    assert receipts
    for receipt in receipts:
        assert TrialReceipt.model_validate(receipt).as_json() == receipt


def test_fields_of_another_version_are_kept() -> None:
    receipt = {"server": {"kind": "mariadb", "new_fact": 1}, "new_part": {"a": [None]}}
    assert TrialReceipt.model_validate(receipt).as_json() == receipt


def test_what_was_requested_is_written_with_its_defaults() -> None:
    receipt = ReplicationReceipt(requested=RequestedReplication(replicas=2, tls=True).with_defaults())
    receipt.fault = InjectedFault(members=(0,)).with_defaults()
    stored = receipt.as_json()
    assert list(stored["asked"]) == [*RequestedReplication.model_fields] and list(stored["fault"]) == [
        *InjectedFault.model_fields
    ]
    assert (stored["asked"]["replicas"], stored["asked"]["mode"], stored["fault"]["members"]) == (2, "semi_sync", [0])
    assert ReplicationReceipt.model_validate(stored).as_json() == stored


def test_an_older_request_keeps_the_fields_that_it_has() -> None:
    stored = {"asked": {"mode": "async", "everywhere": False}, "fault": {"cut": []}, "channel": {}}
    receipt = ReplicationReceipt.model_validate(stored)
    assert receipt.as_json() == stored
    assert receipt.fault is not None and receipt.fault.cut == ()


def test_a_part_of_a_wrong_type_is_refused() -> None:
    with pytest.raises(ValidationError, match="compensate_ns"):
        TrialReceipt.model_validate({"link": {"compensate_ns": "much"}})


def test_only_what_was_recorded_is_written() -> None:
    receipt = TrialReceipt(server=ServerReceipt(kind="redis", content=None))
    receipt.link = LinkReceipt(rtt_at_rest_ns=QuantilesNs(p50=5))
    assert receipt.as_json() == {"server": {"kind": "redis", "content": None}, "link": {"rtt_at_rest_ns": {"p50": 5}}}
    assert receipt.link.rest_rtt_ns == 5 and receipt.link.expected_rtt_ns is None


def test_later_parts_replace_earlier_ones() -> None:
    first = TrialReceipt(server=ServerReceipt(kind="redis"), link=LinkReceipt(mtu=1500))
    both = first.updated(TrialReceipt(link=LinkReceipt(mtu=9000)))
    assert both.as_json() == {"server": {"kind": "redis"}, "link": {"mtu": 9000}}
    assert first.link is not None and first.link.mtu == 1500
