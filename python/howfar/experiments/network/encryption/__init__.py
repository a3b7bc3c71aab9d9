"""Encryption of the connection: the cost of TLS per byte, per connect and in throughput."""
