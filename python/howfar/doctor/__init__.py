"""`howfar doctor`: examines the database and cache servers of this machine, and finds the cost of the path to them and the
configuration lines to change.

It reads /proc and the servers' own counters, and sends a few hundred pings and connects. It starts, stops and sets nothing. The entry
point is `examine.py`; `findings.py` defines the results; `checks.py` finds the problems.
"""
