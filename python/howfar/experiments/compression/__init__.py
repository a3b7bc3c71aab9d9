"""Compression of the connection: what it saves in bytes, what it costs in CPU, and where that pays."""
