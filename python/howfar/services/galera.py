"""Galera's options for messages between the nodes of a cluster of MariaDB servers."""

from __future__ import annotations

WINDOW, PACKET = "evs.user_send_window", "gcs.max_packet_size"
"""Maximum number of a node's messages in progress, and maximum bytes of each."""
DEFAULT_WINDOW, DEFAULT_PACKET_BYTES = 2, 64_500


def provider_options(text: str) -> dict[str, str]:
    """Options in the variable `wsrep_provider_options`."""
    settings = (word.partition("=") for word in text.split(";"))
    return {name.strip(): value.strip() for name, _, value in settings}
