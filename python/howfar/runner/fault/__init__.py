"""Trials that break something on purpose, with the clients' own logs as the reference.

`moments.py`: when; `breaks.py`: what is done for each level of the factor `fault`; `under_load.py`: the load and who watches it;
`crash.py` with `crash_record.py`: what was lost; `fallback.py` with `fallback_record.py`: what was unprotected. Not here: what many
crashes say together (`analysis/replication`).
"""
