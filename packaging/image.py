"""Packs root file systems into an OCI archive, without a daemon: `python packaging/image.py ARCHIVE ARCHITECTURE LAYER...`.

Each layer is a tar file, the lowest first. `SOURCE_DATE_EPOCH` is the timestamp of everything written, so equal layers give equal
bytes. The format is that of the OCI image specification, version 1.0.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_TYPE = "application/vnd.oci.image."
_PIECE = 1 << 20


def pack(archive: Path, architecture: str, layers: Sequence[Path], version: str, epoch: int) -> None:
    """Write the image. `architecture` as Go and OCI name it: amd64, arm64."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        blobs = Path(folder)
        packed = [_packed(layer, blobs) for layer in layers]
        created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        config = {
            "created": created,
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Entrypoint": ["/opt/howfar/bin/howfar"],
                "Env": [
                    "PATH=/opt/howfar/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    "LANG=C.UTF-8",
                ],
                "WorkingDir": "/root",
                "Labels": {"org.opencontainers.image.title": "howfar", "org.opencontainers.image.version": version},
            },
            "rootfs": {"type": "layers", "diff_ids": [diff_id for diff_id, _ in packed]},
            "history": [{"created": created, "created_by": "howfar ./release image"} for _ in packed],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_TYPE}manifest.v1+json",
            "config": _stored(config, f"{_TYPE}config.v1+json", blobs),
            "layers": [descriptor for _, descriptor in packed],
        }
        entry = {
            **_stored(manifest, f"{_TYPE}manifest.v1+json", blobs),
            "platform": {"architecture": architecture, "os": "linux"},
            "annotations": {"org.opencontainers.image.ref.name": f"howfar:{version}"},
        }
        index = {"schemaVersion": 2, "mediaType": f"{_TYPE}index.v1+json", "manifests": [entry]}
        with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
            _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}), epoch)
            _add(tar, "index.json", _json(index), epoch)
            for blob in sorted(blobs.iterdir()):
                member = tarfile.TarInfo(f"blobs/sha256/{blob.name}")
                member.size, member.mtime = blob.stat().st_size, epoch
                with blob.open("rb") as content:
                    tar.addfile(member, content)


def _packed(layer: Path, blobs: Path) -> tuple[str, dict[str, Any]]:
    """Compress a layer into the blobs; returns the digest of its uncompressed content, and its descriptor."""
    compressed = blobs / "layer"
    whole = hashlib.sha256()
    with layer.open("rb") as source, gzip.GzipFile(compressed, "wb", compresslevel=6, mtime=0) as target:
        for piece in _pieces(source):
            whole.update(piece)
            target.write(piece)
    digest = hashlib.sha256()
    with compressed.open("rb") as source:
        for piece in _pieces(source):
            digest.update(piece)
    size = compressed.stat().st_size
    shutil.move(compressed, blobs / digest.hexdigest())
    descriptor = {"mediaType": f"{_TYPE}layer.v1.tar+gzip", "digest": f"sha256:{digest.hexdigest()}", "size": size}
    return f"sha256:{whole.hexdigest()}", descriptor


def _pieces(source: io.BufferedReader) -> Iterator[bytes]:
    return iter(lambda: source.read(_PIECE), b"")


def _stored(value: dict[str, Any], kind: str, blobs: Path) -> dict[str, Any]:
    content = _json(value)
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _add(tar: tarfile.TarFile, name: str, content: bytes, epoch: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime = len(content), epoch
    tar.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    named, kind, *files = sys.argv[1:]
    pack(Path(named), kind, [Path(one) for one in files], os.environ["VERSION"], int(os.environ["SOURCE_DATE_EPOCH"]))
