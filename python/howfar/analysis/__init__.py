"""Pure functions on records: intervals, noise floor, verdicts. Start at `summary.py`, the form of the answer."""
