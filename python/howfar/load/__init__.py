"""`howfar load`: load tests of the user's own server. Turns options into the engine's job, and the engine's events into reports.

No I/O: `howfar.cli` reads files, resolves names and starts the engine.
"""
