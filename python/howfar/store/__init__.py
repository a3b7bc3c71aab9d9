"""WHAT was measured: record types and the run file. Start at `records.py`, then `run_file.py`."""
