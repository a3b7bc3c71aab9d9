"""The engine reads captures in the formats of other tools."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from howfar.errors import UsageError
from howfar.recording import packets
from howfar.recording.recording import read

ADDRESSES = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))
TALK = ((True, 1, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"), (False, 1, b"$1\r\nv\r\n"))


def captured() -> bytes:
    """A Redis request and its reply, as raw IP packets."""
    parts = [struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 1 << 18, 101)]
    for number, (to_server, sequence, data) in enumerate(TALK):
        ports, addresses = ((40_000, 6379), ADDRESSES) if to_server else ((6379, 40_000), ADDRESSES[::-1])
        tcp = struct.pack(">HHIIBBHHH", *ports, sequence, 0, 0x50, 8, 65_535, 0, 0) + data
        packet = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 1, 0, 64, 6, 0) + addresses[0] + addresses[1] + tcp
        parts.append(struct.pack("<IIII", 1, number * 1_000, len(packet), len(packet)) + packet)
    return b"".join(parts)


def record(data: bytes, folder: Path) -> None:
    (folder / "capture").write_bytes(data)
    packets.record(packets.PacketsRequest(6379, None, folder / "a", file=folder / "capture"), lambda _: None)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(captured(), id="plain"),
        pytest.param(gzip.compress(captured()), id="cap-6"),
        pytest.param(gzip.compress(captured()[:60]) + gzip.compress(captured()[60:]), id="cap-6 two members"),
        pytest.param(gzip.compress(captured())[:-8], id="cap-6 ended early"),
    ],
)
def test_a_capture_is_read_with_and_without_gzip(data: bytes, tmp_path: Path) -> None:
    record(data, tmp_path)
    (only,) = read(tmp_path / "a").round_trips
    assert (only.command, only.ended_ns - only.sent_ns) == ("get", 1_000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x28\xb5\x2f\xfd and more", "compressed with zstd"),
        (b"\xfd7zXZ and more", "compressed with xz"),
        (gzip.compress(b"no capture at all", mtime=0), "neither pcap nor pcapng"),
        (b"no capture at all", "neither pcap nor pcapng"),
    ],
)
def test_an_unsupported_format_is_named(data: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=reason):
        record(data, tmp_path)
