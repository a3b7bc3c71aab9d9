"""The exit codes of every command: the one table from which the help, the man pages and the documentation are made."""

from __future__ import annotations

VOID = 7
TO_CHANGE = 8
LIMIT_CROSSED = 9
UNREACHABLE = 10
REFUSED = 11
NO_MEMORY = 12
BUG = 70
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES: tuple[tuple[int, str], ...] = (
    (0, "done"),
    (2, "invalid option, target, plan or value"),
    (3, "something is missing on this machine, such as a server or a permission"),
    (4, "the laboratory could not be built, or failed"),
    (5, "the load failed"),
    (6, "the run file or the output cannot be read or written"),
    (
        VOID,
        "nothing valid was measured: every trial, or the load, is void; or `howfar predict` missed the present time of every page",
    ),
    (TO_CHANGE, "`howfar doctor --strict` found something to change"),
    (LIMIT_CROSSED, "`howfar TARGET --fail-if` found its limit crossed"),
    (UNREACHABLE, "the database cannot be reached: unknown name, no connection, no TLS, or silence"),
    (REFUSED, "the database refused: wrong password, or an account without rights"),
    (NO_MEMORY, "out of memory, of open files, or of the processes that this account may have"),
    (BUG, "a bug in howfar"),
    (129, "as 130, by SIGHUP: the terminal was closed"),
    (INTERRUPTED, "interrupted; the run file holds every finished trial"),
    (BROKEN_PIPE, "the reader of the output went away, as with `| head`"),
    (143, "as 130, by SIGTERM"),
)
"""Code and meaning. 1 is never used: Python and shells end with it. `lab`, `record` and `mark` end with their command's own code."""

CODES_OF_FAILURES = {"connect": UNREACHABLE, "tls": UNREACHABLE, "auth": REFUSED}
"""Exit codes of failures that the engine reports, by their code. All others are those of a load that failed."""

ERROR_NAMES = {
    2: "usage",
    3: "missing",
    4: "laboratory",
    5: "engine",
    6: "file",
    UNREACHABLE: "unreachable",
    REFUSED: "refused",
    NO_MEMORY: "resources",
    BUG: "bug",
    INTERRUPTED: "interrupted",
}
"""The exit codes of errors, as JSON names them."""
