"""`howfar doctor`: examines the database and cache servers of this machine: the cost of the path to them and the lines to change.

Only reads: /proc, the servers' own counters, and a few hundred pings and connects. Nothing here starts, stops or sets anything.
Start at `examine.py`; what is found is in `findings.py`; what is wrong is decided in `checks.py`.
"""
