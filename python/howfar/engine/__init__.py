"""The engine, the program that measures: find it, send it a job, read its typed events. Start at `process.py`."""
