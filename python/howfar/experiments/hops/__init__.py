"""`hops`: what a program between client and server costs, against the same path without it."""
