"""`howfar doctor`: examines the database and cache servers of this machine: the cost of the path to them, and the configuration lines
to change.

It only reads: /proc, the servers' own counters, and a few hundred pings and connects. It starts, stops and sets nothing. The entry
point is `examine.py`; `findings.py` defines the results; `checks.py` decides what is wrong.
"""
