"""What was requested against what a receipt proves: every difference is reported, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from howfar.contract.messages import (
    Compression,
    CustomStatement,
    KeyValue,
    LoadJob,
    Ready,
    Receipt,
    Session,
    Sysbench,
    TcpTarget,
    Tls,
    UnixTarget,
)
from howfar.engine.receipt_check import cipher_name, encryption_note, mismatches

_EXAMPLES = Path(__file__).parents[2] / "schema" / "examples"
TCP = TcpTarget(host="127.0.0.1", port=3306)
SELECT = (CustomStatement(name="a", sql="SELECT 1"),)


def example_receipt(**changes: Any) -> Receipt:
    """The example receipt over TCP: TLS 1.3, zlib."""
    ready = Ready(**json.loads((_EXAMPLES / "event.ready.tcp.json").read_text()))
    return ready.receipt.model_copy(update=changes)


def plain_receipt(**changes: Any) -> Receipt:
    """The same receipt without TLS and compression."""
    names = [name for name in Receipt.model_fields if name.startswith(("tls_", "compression"))]
    return example_receipt(**(dict.fromkeys(names) | changes))


def _job(target: TcpTarget | UnixTarget = TCP, **session: Any) -> LoadJob:
    return LoadJob(
        target=target,
        user="u",
        database="d",
        session=Session(**session),
        workload=Sysbench(kind="oltp_point_select"),
        connections=1,
        seed=1,
        warmup_ns=0,
        measure_ns=1,
    )


@pytest.mark.parametrize(
    "session",
    [
        {"tls": Tls(), "compression": Compression()},
        {"tls": Tls(versions="1.3", cipher="TLS13_AES_256_GCM_SHA384"), "compression": Compression(level=1)},
    ],
)
def test_what_is_as_asked_is_no_difference(session: dict[str, Any]) -> None:
    assert mismatches(_job(**session), example_receipt()) == ()


def test_plain_is_as_asked_when_nothing_was_asked() -> None:
    assert mismatches(_job(), plain_receipt()) == ()
    socket = UnixTarget(path="/s")
    assert mismatches(_job(socket), plain_receipt(address_family="unix", tcp_nodelay=None)) == ()
    assert mismatches(_job(TcpTarget(host="::1", port=1)), plain_receipt(address_family="inet6")) == ()


@pytest.mark.parametrize(
    ("job", "receipt", "expected"),
    [
        (_job(), plain_receipt(address_family="unix"), "inet was requested, but unix"),
        (_job(UnixTarget(path="/s")), plain_receipt(), "a Unix socket was requested, but inet"),
        (_job(TcpTarget(host="::1", port=1)), plain_receipt(), "inet6 was requested"),
        (_job(), plain_receipt(tcp_nodelay=False), "TCP_NODELAY"),
        (_job(), plain_receipt(tls_client_version="TLSv1.3"), "no TLS was requested, but TLSv1.3"),
        (_job(), plain_receipt(compression="zlib"), "no compression was requested, but zlib"),
        (_job(tls=Tls()), plain_receipt(), "TLS was requested, but the session is not encrypted"),
        (
            _job(tls=Tls(versions="1.2"), compression=Compression()),
            example_receipt(),
            "TLS 1.2 was requested, but TLSv1.3",
        ),
        (
            _job(tls=Tls(cipher="ECDHE-RSA-AES128-GCM-SHA256"), compression=Compression()),
            example_receipt(),
            "the cipher ECDHE-RSA-AES128-GCM-SHA256 was requested, but TLS_AES_256_GCM_SHA384",
        ),
        (
            _job(tls=Tls(resumption=False), compression=Compression()),
            example_receipt(tls_resumed=True),
            "resumed, although that was not",
        ),
        (_job(compression=Compression()), plain_receipt(), "zlib compression was requested, but none"),
        (_job(compression=Compression(algorithm="zstd")), plain_receipt(compression="zlib"), "zstd compression"),
        (
            _job(compression=Compression(algorithm="zstd", level=7)),
            plain_receipt(compression="zstd", compression_level=3),
            "level 7 was requested, but 3",
        ),
    ],
)
def test_each_difference_is_told_once(job: LoadJob, receipt: Receipt, expected: str) -> None:
    found = mismatches(job, receipt)
    assert len(found) == 1
    assert expected in found[0].sentence


@pytest.mark.parametrize(
    ("job", "receipt", "near", "far"),
    [
        (_job(tls=Tls(versions="1.3")), example_receipt(tls_version=None, tls_cipher=None), "TLSv1.3", "no TLS"),
        (_job(tls=Tls(versions="1.3")), example_receipt(tls_version="TLSv1.2"), "TLSv1.3", "TLSv1.2"),
        (_job(), plain_receipt(tls_version="TLSv1.3"), "no TLS", "TLSv1.3"),
    ],
)
def test_what_the_server_sees_behind_a_proxy_is_a_note(job: LoadJob, receipt: Receipt, near: str, far: str) -> None:
    """[tls-1] The client's half is proven, the other is unknown: a load through a pooler is valid."""
    assert mismatches(job, receipt.model_copy(update={"compression": None})) == ()
    note = encryption_note(job, receipt)
    assert note is not None and note.index(near) < note.index(far)
    assert encryption_note(_job(tls=Tls()), example_receipt()) is None
    assert encryption_note(_job(), plain_receipt()) is None


def test_a_key_value_store_does_not_tell_of_its_encryption() -> None:
    workload = KeyValue(protocol="resp3")
    update = {"workload": workload, "user": "", "database": ""}
    ours = plain_receipt(tls_client_version="TLSv1.3", tls_client_cipher="TLS_AES_256_GCM_SHA384")
    assert mismatches(_job(tls=Tls(versions="1.3")).model_copy(update=update), ours) == ()
    assert encryption_note(_job(tls=Tls(versions="1.3")).model_copy(update=update), ours) is None
    assert mismatches(_job().model_copy(update=update), plain_receipt()) == ()
    (missing,) = mismatches(_job(tls=Tls()).model_copy(update=update), plain_receipt())
    assert missing.id == "no-tls"


def test_where_sessions_must_be_resumed_it_is_not_enough_that_they_may() -> None:
    each_time: dict[str, Any] = {"tls": Tls(), "compression": Compression(), "connect": "per_transaction"}
    for resumed in (False, None):
        receipt = example_receipt(tls_resumed=resumed)
        assert mismatches(_job(**each_time), receipt) == (), "a job only permits it"
        (found,) = mismatches(_job(**each_time), receipt, must_resume=True)
        assert found.id == "session-not-resumed"
        assert mismatches(_job(**each_time | {"tls": Tls(resumption=False)}), receipt, must_resume=True) == ()
        assert mismatches(_job(**each_time | {"connect": "persistent"}), receipt, must_resume=True) == ()
    assert mismatches(_job(**each_time), example_receipt(tls_resumed=True), must_resume=True) == ()
    assert len(mismatches(_job(**each_time), plain_receipt(compression="zlib"), must_resume=True)) == 1, (
        "plain is told once"
    )


def test_all_differences_are_told() -> None:
    job = _job(UnixTarget(path="/s"), tls=Tls(), compression=Compression())
    assert len(mismatches(job, plain_receipt())) == 3


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("TLS13_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
        ("tls_aes_128_gcm_sha256", "TLS_AES_128_GCM_SHA256"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    ],
)
def test_a_cipher_has_many_names(name: str, reported: str) -> None:
    assert cipher_name(name) == reported
