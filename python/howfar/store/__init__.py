"""The records of what was measured, and the run file that holds them. Start at `records.py`, then `run_file.py`."""
