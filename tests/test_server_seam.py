"""A kind of server has its own files, and few other files know it: counted for PostgreSQL.

Only code counts: names, and strings of one word. Prose (help, messages, docstrings) may mention any server.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "python/howfar"
WORD = "postgres"
OWN = {
    "clients/postgresql.py",
    "address/libpq.py",
    "services/postgresql.py",
    "lab/servers/postgresql.py",
    "experiments/replication/lab/postgresql.py",
    "doctor/protocols/postgresql.py",
    "bench/pgbench.py",
    "paths/pgbouncer.py",
    "contract/messages.py",  # generated
    "contract/ping_messages.py",  # generated
    "contract/receipt_messages.py",  # generated
}
KNOWN = {
    "services/__init__.py": "registration",
    "services/service.py": "the contract's names of services",
    "lab/servers/kinds.py": "registration",
    "lab/servers/program.py": "what a program says of itself, and Debian's folder",
    "experiments/replication/lab/dialect.py": "registration",
    "doctor/targets.py": "logins by kind",
    "doctor/kind.py": "the kinds of a report",
    "doctor/candidates.py": "how its processes and sockets look",
    "distance/requests.py": "registration",
    "distance/target.py": "whose clients encrypt unasked",
    "cli/suggest.py": "how its users spell it",
    "load/cmdline.py": "pgbench's options",
    "doctor/protocols/__init__.py": "registration",
    "contract/services.py": "the services of a message",
    "fleet/user_server.py": "what a session may ask a server of the user's own",
    "load/job.py": "options of a protocol",
    "cli/target.py": "libpq's files",
    "cli/lab.py": "libpq's variables",
    "experiments/replication/report.py": "registration of lines to write",
    "paths/user_proxies.py": "which protocol a proxy reads",
}
"""Other files, and what they know about PostgreSQL."""
MOST = 20


def words(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            if len(node.value.split()) == 1:
                yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.alias):
            yield node.name
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_few_files_know_one_kind_of_server() -> None:
    files = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.py")}
    assert files.keys() >= OWN
    knowing = {name for name, text in files.items() if any(WORD in word.lower() for word in words(text))} - OWN
    assert knowing == KNOWN.keys()
    assert len(KNOWN) <= MOST
