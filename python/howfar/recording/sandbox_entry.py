"""Becomes the user's command inside the namespace in which this program was started. Uses only the standard library, to start quickly.

The program mounts the tap's socket over the server's, reports its mount namespace, and waits for permission to continue, so that
nothing of the application runs before the tap knows which namespace it serves. If the command cannot be started, the program reports
the reason; when the command starts, the report pipe closes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

NOT_MOUNTED, NOT_STARTED = 125, 127


def main() -> int:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # end without a traceback
    report, go, source, target, *command = sys.argv[1:]
    report_fd, go_fd = int(report), int(go)
    for descriptor in (report_fd, go_fd):
        os.set_inheritable(descriptor, False)
    if source:
        if subprocess.run(["mount", "--bind", source, target]).returncode:
            return NOT_MOUNTED
        # Once mounted, the socket needs no name: removing it now leaves nothing to clean up after a kill.
        with contextlib.suppress(OSError):
            os.unlink(source)  # noqa: PTH108 - pathlib takes milliseconds
            os.rmdir(os.path.dirname(source))  # noqa: PTH106, PTH120
    os.write(report_fd, str(os.stat("/proc/self/ns/mnt").st_ino).encode())  # noqa: PTH116
    if not os.read(go_fd, 1):
        return NOT_MOUNTED
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(report_fd, str(error.strerror).encode())
        return NOT_STARTED


if __name__ == "__main__":
    sys.exit(main())
