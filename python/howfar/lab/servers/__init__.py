"""One file a server: find, initialise, start, ready, stop, receipt."""
