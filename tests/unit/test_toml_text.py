"""TOML written by users: any text is read as a table or refused with a line number, for every file that howfar reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from howfar.errors import UsageError
from howfar.fleet.hosts_file import parse_hosts
from howfar.load.job import parse_workload
from howfar.plan.load import load_plan
from howfar.toml_text import MAX_DEPTH, MalformedToml, parse_toml

NESTED: dict[str, Callable[[int], str]] = {
    "arrays": lambda depth: "a = " + "[" * depth + "]" * depth,
    "tables": lambda depth: "a = " + "{b=" * depth + "1" + "}" * depth,
    "keys": lambda depth: ".".join("a" * depth) + " = 1",
    "headers": lambda depth: "[" + ".".join("a" * depth) + "]",
    "unclosed": lambda depth: "a = " + "[" * depth,
}


def plan(tmp_path: Path, text: str) -> object:
    path = tmp_path / "deep.toml"
    path.write_text(text)
    return load_plan(str(path))


READERS: dict[str, Callable[[Path, str], object]] = {
    "plan": plan,
    "workload": lambda _, text: parse_workload("deep.toml", text),
    "hosts": lambda _, text: parse_hosts(text, "deep.toml"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("nested", NESTED)
def test_deep_text_is_malformed_and_has_its_line(reader: str, nested: str, tmp_path: Path) -> None:
    """[file-11]"""
    with pytest.raises(UsageError, match=r"deep\.toml:3.*: malformed TOML"):
        READERS[reader](tmp_path, "# deep\n\n" + NESTED[nested](5000) + "\n")


@pytest.mark.parametrize("nested", ["arrays", "tables", "keys"])
def test_the_bound_is_a_depth(nested: str) -> None:
    parse_toml(NESTED[nested](MAX_DEPTH - 2))
    with pytest.raises(MalformedToml):
        parse_toml(NESTED[nested](MAX_DEPTH + 2))


@given(st.text(st.sampled_from("[]{}=.,\"'#\n\\ a1"), max_size=200))
def test_any_text_is_a_table_or_malformed(text: str) -> None:
    try:
        assert isinstance(parse_toml(text), dict)
    except MalformedToml as error:
        assert 1 <= error.line <= max(len(text.splitlines()) + 1, 1)
