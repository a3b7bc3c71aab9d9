"""Compression of the connection: bytes saved, CPU spent, and where it pays."""
