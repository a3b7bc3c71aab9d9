"""`howfar load`: the engine against a user's own server. What is pure of it: options in, a job out; events in, reports out.

Not here: reading files, resolving names, starting the engine (`howfar.cli.load`, `howfar.cli.load_run`).
"""
