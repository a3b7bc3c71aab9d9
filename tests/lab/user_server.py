"""A program for the tests: runs a server with sysbench's tables until stdin ends, like a user's own server on a host.

python -m tests.lab.user_server KIND DIRECTORY ADDRESS TABLE_SIZE     Prints its port; writes its password to DIRECTORY/password.
"""

from __future__ import annotations

import sys
from pathlib import Path

from howfar.lab.network import Host, usable_cpus
from howfar.lab.servers import ServerContext, Tables, find_store


def main() -> int:
    kind, directory, address, size = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    store = find_store(kind, Tables(1, size))
    store.prepare(ServerContext(directory, Host("server", None), usable_cpus(), 64, True, address))
    running = store.start(networking=True, transport="tcp")
    try:
        (directory / "password").touch(mode=0o600)
        (directory / "password").write_text(f"{store.password}\n")
        print(running.port, flush=True)
        sys.stdin.read()
    finally:
        running.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
