"""`howfar load`: the engine against the user's own server. Pure: options in, a job out; events in, reports out.

Reading files, resolving names and starting the engine are in `howfar.cli`.
"""
