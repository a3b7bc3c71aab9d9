"""Differences between the obtained session and the requested one. Any difference makes a trial void. No I/O.

A property that a receipt cannot show on a transport counts as no difference. A property that was obtained but not requested is a
difference. Encryption is judged by the client's side. If the server reports other encryption, which is then that of a pooler's
or proxy's connection, a note says so.
"""

from __future__ import annotations

from typing import Final

from howfar.contract.messages import (
    KeyValue,
    LoadJob,
    Receipt,
    Service,
    TablesJob,
    Target,
    Tls,
    UnixTarget,
)
from howfar.contract.violation import Violation, violation

_OPENSSL_NAMES: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
"""IANA's names of the cipher suites of TLS 1.2, and OpenSSL's, which servers report."""


def mismatches(job: LoadJob | TablesJob, receipt: Receipt, must_resume: bool = False) -> tuple[Violation, ...]:
    """Differences between receipt and request. `must_resume`: whether connections per transaction must resume TLS if the job
    permits it."""
    differences = (
        *transport_mismatches(job.target, receipt),
        *_tls_differences(job.session.tls, receipt),
        *_compression_differences(job, receipt),
    )
    return (*differences, *_resumption_differences(job, receipt)) if must_resume else differences


def service_mismatches(service: Service, receipt: Receipt, is_sql: bool) -> tuple[Violation, ...]:
    """Differences between a service's receipt and the request, where a job uses several services."""
    note = _encryption_end_note(receipt) if is_sql else None
    return (
        *transport_mismatches(service.target, receipt),
        *_tls_differences(service.tls, receipt),
        *_unrequested_compression(receipt),
        *([note] if note else []),
    )


def transport_mismatches(target: Target, receipt: Receipt) -> tuple[Violation, ...]:
    """Differences between the target and the kind of connection that was obtained."""
    if isinstance(target, UnixTarget):
        if receipt.address_family != "unix":
            return (violation("socket-not-obtained", obtained=receipt.address_family),)
        return ()
    expected = "inet6" if ":" in target.host else "inet"
    if receipt.address_family != expected:
        families = {"requested": expected, "obtained": receipt.address_family}
        return (violation("address-family-not-obtained", **families),)
    if receipt.tcp_nodelay is False:
        return (violation("nagle"),)
    return ()


def _tls_differences(requested: Tls | None, receipt: Receipt) -> tuple[Violation, ...]:
    """Differences in the encryption that the client negotiated. What the server reports may apply to a proxy's
    connection (`encryption_note`)."""
    version, cipher = receipt.tls_client_version, receipt.tls_client_cipher
    if requested is None:
        return () if version is None else (violation("unrequested-tls", obtained=version),)
    if version is None:
        return (violation("no-tls"),)
    differences = []
    if requested.versions != "any" and version != f"TLSv{requested.versions}":
        differences.append(violation("tls-version", requested=requested.versions, obtained=version))
    if requested.cipher is not None and cipher != cipher_name(requested.cipher):
        differences.append(violation("tls-cipher", requested=requested.cipher, obtained=cipher))
    if not requested.resumption and receipt.tls_resumed:
        differences.append(violation("session-resumed"))
    return tuple(differences)


def encryption_note(job: LoadJob | TablesJob, receipt: Receipt) -> str | None:
    """A sentence on the encryption at both ends, if the client's encryption ends before the server; otherwise None. Key-value stores
    do not report their encryption."""
    note = None if isinstance(job.workload, KeyValue) else _encryption_end_note(receipt)
    return None if note is None else note.sentence


def _encryption_end_note(receipt: Receipt) -> Violation | None:
    """A violation if server and client report different encryption: then a pooler or a provider's proxy is in between."""
    client_side = (receipt.tls_client_version, receipt.tls_client_cipher)
    server_side = (receipt.tls_version, receipt.tls_cipher)
    if client_side == server_side:
        return None
    client_text, server_text = (
        f"{version} with {cipher}" if version else "no TLS" for version, cipher in (client_side, server_side)
    )
    return violation("encryption-ends-in-between", client_side=client_text, server_side=server_text)


def _resumption_differences(job: LoadJob | TablesJob, receipt: Receipt) -> tuple[Violation, ...]:
    """A difference if an encrypted session was not resumed; that a session is plain is reported elsewhere."""
    requested = job.session.tls is not None and job.session.tls.resumption and job.session.connect == "per_transaction"
    if requested and receipt.tls_client_version is not None and not receipt.tls_resumed:
        return (violation("session-not-resumed"),)
    return ()


def cipher_name(name: str) -> str:
    """A cipher suite's name as servers report it, from any of its names."""
    upper = name.upper()
    if upper.startswith("TLS13_"):
        return "TLS_" + upper.removeprefix("TLS13_")
    return _OPENSSL_NAMES.get(upper, upper)


def _unrequested_compression(receipt: Receipt) -> tuple[Violation, ...]:
    if receipt.compression is None:
        return ()
    return (violation("unrequested-compression", obtained=receipt.compression),)


def _compression_differences(job: LoadJob | TablesJob, receipt: Receipt) -> tuple[Violation, ...]:
    requested = job.session.compression
    algorithm = requested.algorithm if requested else None
    if receipt.compression != algorithm:
        algorithms = {"requested": algorithm or "no", "obtained": receipt.compression or "none"}
        return (violation("compression", **algorithms),)
    # Servers report only zstd's level, which the client chooses; with zlib each side chooses its own.
    if (
        requested
        and requested.algorithm == "zstd"
        and requested.level is not None
        and receipt.compression_level != requested.level
    ):
        levels = {"requested": requested.level, "obtained": receipt.compression_level}
        return (violation("compression-level", **levels),)
    return ()
