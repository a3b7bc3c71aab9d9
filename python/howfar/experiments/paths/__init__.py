"""Paths compared, and a path against itself."""
