"""Workloads in TOML: what they become, and that every mistake is told with its line and key."""

from __future__ import annotations

import re

import pytest

from howfar.engine.messages import Custom
from howfar.errors import PlanError
from howfar.load.workload_file import example, examples, parse_workload

GOOD = """\
prepare = ["CREATE TABLE t (id INT)"]

[[statements]]
name = "one"
sql = \"\"\"
SELECT ?
name = 1
\"\"\"
parameters = [{ kind = "text", length = "1KiB", compressible = "50%" }]

[[statements]]
name = "two"
sql = "SELECT ?"
parameters = [
    { kind = "integer", high = 10, distribution = "zipfian" },
]

[[transactions]]
name = "t"

[[transactions.steps]]
statement = "one"
think = "5ms"

[[transactions]]
name = "u"

[[transactions.steps]]
statement = "two"

[[transactions.steps]]
statement = "one"
repeat = 2
"""


def test_quantities_have_units() -> None:
    found = parse_workload("w.toml", GOOD)
    assert isinstance(found, Custom)
    text = found.statements[0].parameters[0].model_dump()
    assert (text["length"], text["compressible"]) == (1024, 0.5)
    assert found.statements[1].parameters[0].model_dump()["distribution"]["kind"] == "zipfian"
    assert found.transactions[0].steps[0].think_ns == 5_000_000
    assert [step.repeat for step in found.transactions[1].steps] == [1, 2]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('think = "5ms"', "think = 5", "w.toml:23: transactions[1].steps[1].think: 5 has no unit"),
        ('think = "5ms"', 'think = "5 parsecs"', "w.toml:23: transactions[1].steps[1].think: "),
        ("repeat = 2", "repeat = 0", "w.toml:33: transactions[2].steps[2].repeat: "),
        ("repeat = 2", "repaet = 2", "w.toml:33: transactions[2].steps[2].repaet: unknown key"),
        ('name = "two"', 'name = "Two Words"', "w.toml:12: statements[2].name: "),
        ('sql = "SELECT ?"', "", "w.toml:11: statements[2].sql: is missing"),
        ('kind = "integer"', 'kind = "integre"', "w.toml:14: statements[2].parameters[1]: "),
        ('statement = "two"', 'statement = "three"', "transaction u names statement three, which is not there"),
        ("[[transactions]]\nname = \"t\"", "[[transactions]\nname = \"t\"", "w.toml:18: malformed TOML"),
    ],
)  # fmt: skip
def test_an_error_names_its_line(before: str, after: str, expected: str) -> None:
    assert before in GOOD
    with pytest.raises(PlanError, match=re.escape(expected)) as caught:
        parse_workload("w.toml", GOOD.replace(before, after, 1))
    assert caught.value.advice


@pytest.mark.parametrize(
    ("sql", "marks"),
    [("SELECT 1", 0), ("SELECT ?, ?", 2), ("""SELECT '?', `a?b`, "it's ?" AS x""", 0), ("SELECT 'it''s ?', ?, ?", 2)],
)
def test_as_many_marks_as_parameters(sql: str, marks: int) -> None:
    """Refused here, with file and statement, and not by the engine."""
    message = f"w.toml:13: statements[2].sql: statement two has {marks} `?` and 1 parameter"
    with pytest.raises(PlanError, match=re.escape(message)):
        parse_workload("w.toml", GOOD.replace('sql = "SELECT ?"', f'sql = """{sql}"""'))


@pytest.mark.parametrize("name", examples())
def test_what_comes_along_is_a_workload(name: str) -> None:
    found = parse_workload(name, example(name))
    assert found.prepare and found.cleanup
