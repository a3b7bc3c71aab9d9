"""`hops`: the cost of a program between client and server, compared with the same path without it."""
