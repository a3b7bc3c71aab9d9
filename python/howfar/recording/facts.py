"""The facts of a recording: how it was made, and what the recorder cost. An unset fact was not recorded, or not yet."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from howfar.contract.receipt_part import ReceiptPart
from howfar.recording.calibration import Placement, Rhythm
from howfar.recording.other_programs import RecordedPrograms


class PassedBytes(ReceiptPart):
    """The bytes that a tap passed on, and whether they are all that it received."""

    to_server: int | None = None
    to_client: int | None = None
    all_passed_on: bool | None = None
    crc32_to_server: int | None = None
    crc32_to_client: int | None = None


class NameCost(ReceiptPart):
    """The cost, to an application, of a server's name that the tap's address replaced."""

    lookup_ns: int
    addresses: list[str]
    first_address_ns: int = 0
    """Duration of an attempt to connect to the first address; 0 if that is the server's."""


class RecordingFacts(ReceiptPart):
    """How a recording was made, and its totals."""

    format: int | None = None
    howfar: str | None = None
    began_unix_ns: int | None = None
    method: str | None = None
    """`tap`, `packets` or `pcap`."""
    command: str | None = None
    transport: str | None = None
    """`unix` or `tcp`."""
    idle: str | None = None
    protocol: str | None = None
    tls: bool | None = None
    round_trips: int | None = None
    unknown: dict[str, int] = Field(default_factory=dict)
    """How often something is unknown, by reason."""
    commands: dict[str, int] = Field(default_factory=dict)
    exit_code: int | None = None
    complete: bool | None = None
    stopped: str | None = None
    contested: Mapping[int, int] = Field(default_factory=dict)
    """Number of round trips that another page claims too, by page ID."""
    refused: int | None = None
    passed: PassedBytes | None = Field(None, alias="bytes")
    tap_ns: int | None = None
    """Time that the tap added to a round trip; 0 without a tap, None if unknown."""
    tap_limits_ns: tuple[int | None, int | None] = (None, None)
    """Confidence interval of `tap_ns`."""
    tap_unknown: str | None = None
    """Why `tap_ns` is unknown."""
    floor_ns: int | None = None
    """See `RecorderCost`."""
    path_ns: int | None = None
    rhythm: Rhythm | None = None
    cpus: Placement = Placement()
    names: dict[str, NameCost] = Field(default_factory=dict)
    repeated_syns: int = 0
    repeated_syns_ns: int = 0
    capture_cpus: float | None = None
    others: RecordedPrograms | None = None
    """None: an older recording, or other programs could not be seen."""
