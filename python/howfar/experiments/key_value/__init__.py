"""Loads of key-value stores alone."""
