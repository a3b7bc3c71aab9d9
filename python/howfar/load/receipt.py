"""Where the session that was obtained is not the one that was asked for, in words. Pure; any difference makes a result void."""

from __future__ import annotations

from howfar.engine.messages import LoadJob, Receipt, UnixTarget


def mismatches(job: LoadJob, receipt: Receipt) -> tuple[str, ...]:
    """Empty: all is as asked. What the receipt cannot tell on this transport is no difference."""
    return (*_transport(job, receipt), *_tls(job, receipt), *_compression(job, receipt))


def _transport(job: LoadJob, receipt: Receipt) -> tuple[str, ...]:
    if isinstance(job.target, UnixTarget):
        if receipt.address_family != "unix":
            return (f"a Unix socket was asked for, and {receipt.address_family} was obtained",)
        return ()
    wanted = "inet6" if ":" in job.target.host else "inet"
    if receipt.address_family != wanted:
        return (f"{wanted} was asked for, and {receipt.address_family} was obtained",)
    return ()


def _tls(job: LoadJob, receipt: Receipt) -> tuple[str, ...]:
    asked = job.session.tls
    if asked is None:
        return () if receipt.tls_version is None else (f"no TLS was asked for, and {receipt.tls_version} was obtained",)
    if receipt.tls_version is None:
        return ("TLS was asked for, and a plain session was obtained",)
    if asked.versions != "any" and not receipt.tls_version.endswith(asked.versions):
        return (f"TLS {asked.versions} was asked for, and {receipt.tls_version} was obtained",)
    return ()


def _compression(job: LoadJob, receipt: Receipt) -> tuple[str, ...]:
    asked = job.session.compression
    wanted = asked.algorithm if asked else None
    if receipt.compression != wanted:
        return (f"{wanted or 'no'} compression was asked for, and {receipt.compression or 'none'} was obtained",)
    if asked and asked.level is not None and receipt.compression_level not in (None, asked.level):
        return (f"compression level {asked.level} was asked for, and {receipt.compression_level} was obtained",)
    return ()
