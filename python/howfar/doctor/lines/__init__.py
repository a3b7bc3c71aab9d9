"""The exact lines that the checks propose: of the servers' files (`servers.py`) and of their clients' (`clients.py`). Pure."""
