"""Losses in a crash: clients' logs compared with the rows of the surviving server."""
