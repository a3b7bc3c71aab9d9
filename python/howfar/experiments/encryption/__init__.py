"""Encryption of the connection: what TLS costs per byte, per connect and of throughput."""
