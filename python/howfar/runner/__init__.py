"""The runner: measures a plan block by block in random order, decides when to stop, and resumes runs. Start at `run.py`."""
