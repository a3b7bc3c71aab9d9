"""How many values a statement takes: the `?` outside of quotes and comments, by the lexical rules of its server.

The engine has the same rules (`crates/wire/src/sql.rs`), and `tests/data/values.tsv` holds both to them.
"""

from __future__ import annotations

import re

from howfar.services import SqlProtocol

_MYSQL = re.compile(
    r"""
    '(?:''|\\.|[^'\\])*(?:'|\\?\Z) | "(?:""|\\.|[^"\\])*(?:"|\\?\Z) | `(?:``|[^`])*(?:`|\Z)
    | \#[^\n]* | --(?=[\x00-\x20]|\Z)[^\n]* | /\*(?!M?!)(?:(?!\*/).)*
    | (?P<value>\?)
    """,
    re.DOTALL | re.VERBOSE,
)
_NAME = r"A-Za-z0-9_$\x80-\U0010ffff"
_POSTGRESQL = re.compile(
    rf"""
    (?<![{_NAME}])[eE]'(?:''|\\.|[^'\\])*(?:'|\\?\Z) | '(?:''|[^'])*(?:'|\Z) | "(?:""|[^"])*(?:"|\Z)
    | (?<![{_NAME}])(?P<tag>\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$)(?:(?!(?P=tag)).)*
    | --[^\n]* | (?P<comment>/\*)
    | \?\? | \?& | \?\|(?!\|) | \?(?=[ \t\n\f\r]*')
    | (?P<value>\?)
    """,
    re.DOTALL | re.VERBOSE,
)
_BORDER = re.compile(r"/\*|\*/")


def count_values(sql: str, protocol: SqlProtocol) -> int:
    """The number of values. What `/*!` holds is run by MySQL. PostgreSQL's operator `?` is written `??`, and is seen before a string;
    `?|` and `?&` are operators too."""
    rules = _POSTGRESQL if protocol == "postgresql" else _MYSQL
    count, at = 0, 0
    while (found := rules.search(sql, at)) is not None:
        count += found.lastgroup == "value"
        at = found.end()
        if found.lastgroup == "tag":
            at += len(found["tag"])
        elif found.lastgroup == "comment":
            at = _end_of_comment(sql, at)
    return count


def _end_of_comment(sql: str, at: int) -> int:
    """Where a comment of PostgreSQL ends that begins before `at`; it may hold others."""
    depth = 1
    for border in _BORDER.finditer(sql, at):
        depth += 1 if border[0] == "/*" else -1
        if depth == 0:
            return border.end()
    return len(sql)
