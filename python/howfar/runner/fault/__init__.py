"""Trials that break something on purpose, with the clients' own logs as the reference.

`under_load.py`: the load and who watches it; `crash.py`: what was lost, by an account of the logs; `fallback.py`: what was
unprotected.
"""
