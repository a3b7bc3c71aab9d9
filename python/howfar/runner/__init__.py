"""The runner: blocks, random order, stopping rule, resume. Start at `run.py`."""
