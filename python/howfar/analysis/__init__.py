"""Pure functions from the records of a run to its results: intervals, noise floors, verdicts. Start at `summary.py`."""
