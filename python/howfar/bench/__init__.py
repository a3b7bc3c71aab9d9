"""The instrument's own cost, measured: what no result of it can be below. Start at `calibrate.py`."""
