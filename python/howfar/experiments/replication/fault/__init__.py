"""Trials that break something on purpose, with the clients' own logs as the reference.

`under_load.py`: the load and its watchers; `crash.py`: which commits were lost, by comparing logs with rows; `fallback.py`: which
commits were unprotected.
"""
