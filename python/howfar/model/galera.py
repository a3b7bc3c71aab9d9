"""How Galera sends a transaction to the other nodes: its messages, and the options that limit them. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

WINDOW, PACKET = "evs.user_send_window", "gcs.max_packet_size"
"""Galera's options: maximum number of a node's messages in progress, and maximum bytes of each."""


def provider_options(text: str) -> dict[str, str]:
    """Options in the variable `wsrep_provider_options`."""
    settings = (word.partition("=") for word in text.split(";"))
    return {name.strip(): value.strip() for name, _, value in settings}


PAYLOAD_SHARE = 0.93
"""Share of payload in the bytes on a link. The rest is framing, and acknowledgements of the other direction's messages."""


@dataclass(frozen=True)
class GaleraMessages:
    """How Galera sends a transaction: in messages, of which at most `max_in_progress` are in progress. The next one waits until one of
    them is agreed on."""

    max_in_progress: int = 2
    packet_bytes: int = 64_500
    """Size of a message; both fields have Galera's defaults."""

    def sending_s(self, sent_bytes: float, rate_bps: float, agreement_s: float) -> float:
        """Time to send `sent_bytes` over a link, beyond one agreement: by the link's rate, or by the agreements in between if
        longer."""
        batches = ceil(ceil(sent_bytes * PAYLOAD_SHARE / self.packet_bytes) / self.max_in_progress)
        message_s = min(self.packet_bytes, sent_bytes) * 8 / rate_bps
        return max(sent_bytes * 8 / rate_bps, (batches - 1) * (agreement_s + message_s) + message_s)
