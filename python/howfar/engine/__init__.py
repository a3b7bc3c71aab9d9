"""MEASURE: find the engine program, hand it a job, read its typed events. Start at `process.py`."""

from howfar.engine import rules as rules
