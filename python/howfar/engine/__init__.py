"""MEASURE: find the engine program, send it a job, read its typed events. Start at `process.py`."""
