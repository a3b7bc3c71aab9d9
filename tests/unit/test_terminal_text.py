"""Text from outside on its way to a terminal: a server's errors, names in a run file, a command's words."""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tests.rarely import rarely_but
from tests.unit.fake_peers import TEXT, FakePeer
from tests.unit.test_recorded_runs import unpacked

from howfar.cli.main import run_command_line
from howfar.cli.screen import _PrintableStream, rich_console
from howfar.doctor.findings import Kind
from howfar.report.document import (
    AdviceBlock,
    Answer,
    Bullets,
    Cell,
    Code,
    Details,
    Document,
    Facts,
    Heading,
    Table,
    Text,
    Warnings,
    plain_cells,
    plain_columns,
)
from howfar.report.terminal import render
from howfar.report.text import as_csv, as_markdown
from howfar.terminal_text import one_line, printable, printable_json

ROOT = Path(__file__).parents[2]
RECORDED = "paths-mariadb"
FORGED = TEXT.decode() + "\nhowfar: a second line\x00\u2028\u0085"
ACTS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except the line end, and characters that change the direction of writing."""
COMMAND = [sys.executable, "-c", "import sys; from howfar.cli import main; sys.exit(main())"]


@given(st.text())
def test_what_is_printed_does_not_act(text: str) -> None:
    assert not ACTS.search(printable(text)) and len(printable(text)) == len(text)
    assert "\n" not in one_line(text)


@given(st.text(st.characters(codec="utf-8")))
def test_json_keeps_its_value(text: str) -> None:
    written = printable_json(json.dumps({"key": text}, ensure_ascii=False))
    assert not ACTS.search(written) and json.loads(written) == {"key": text}


def test_what_people_write_stays() -> None:
    for text in ("µs ± 1 %, 2\u00a0ms", "Größe, 数据库, база, 🐬", "a\nb"):
        assert printable(text) == text


def test_a_stream_writes_nothing_that_acts() -> None:
    written = io.StringIO()
    stream: Any = _PrintableStream(written)
    print(FORGED, file=stream)
    stream.writelines([FORGED])
    assert not ACTS.search(written.getvalue()) and not hasattr(stream, "buffer")


def test_colours_are_howfars_own() -> None:
    """[peer-5] Rich writes control sequences; those in the texts are replaced."""
    written = io.StringIO()
    rich_console(written, no_color=False, width=200, force_terminal=True, color_system="standard").print(
        f"[red]{FORGED}[/red]"
    )
    shown = written.getvalue()
    assert "\x1b[31m" in shown
    assert not ACTS.search(re.sub(r"\x1b\[[\d;]*m", "", shown)) and "?[2J" in shown


def document() -> Document:
    blocks = (
        Heading(FORGED), Text(FORGED), Bullets((FORGED,)), Warnings((FORGED,)), AdviceBlock(FORGED, FORGED), Facts({FORGED: [FORGED]}),
        Code((FORGED,)), Details(FORGED, (Text(FORGED),)),
        Table(FORGED, plain_columns(FORGED, FORGED), (plain_cells(FORGED, FORGED),)),
    )  # fmt: skip
    return Document(FORGED, blocks, ({FORGED: FORGED},))


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize("colour", [False, True])
def test_a_report_in_the_terminal_has_only_its_own_colours(colour: bool, details: bool) -> None:
    """[file-1]"""
    shown = render(document(), 100, colour=colour, details=details)
    own = re.sub(r"\x1b\[(?:1|2|33|0)m", "", shown) if colour else shown
    assert not ACTS.search(own)
    assert not any(line.startswith("howfar: a second line") for line in own.splitlines())


def test_markdown_has_no_line_of_others() -> None:
    """[file-1]"""
    assert not ACTS.search(as_markdown(document()))
    assert not any(line.startswith("howfar: a second line") for line in as_markdown(document()).splitlines())
    assert not ACTS.search(printable(as_csv(document())))


OWN_TAGS = {"<br>", "<details>", "</details>", "<summary>", "</summary>"}
NASTY = st.text(st.sampled_from("<>!/-#+*=_~`|\\[]()&:1.ab \n"), max_size=12) | st.sampled_from(
    ["</details>", "<!--", "`<b>`", "```", "# a", "> a", "- a", "1. a", "---"]
)


@given(st.lists(NASTY, min_size=6, max_size=6))
def test_no_text_opens_a_tag_or_a_heading_in_markdown(texts: list[str]) -> None:
    """Read with the rules of CommonMark and GitHub's tables."""
    one, two, three, four, five, six = texts
    blocks = (
        Answer(f"a{one}", why=two, certainty=three), Text(two), Bullets((three, one)), Warnings((four,)), AdviceBlock(f"a{five}", six),
        AdviceBlock("a", one, (two, three)),
        Code((one, six)), Details(four, (Text(five), Code((two,)))), Details(five, (Text(six),), open=True),
        Table(six, plain_columns(one, two), ((Cell(three, four), Cell(five, six)),), notes=(one,)),
    )  # fmt: skip
    written = as_markdown(Document("title", blocks, question=six, setting=one))
    tokens = MarkdownIt("commonmark").enable("table").parse(written)
    every = [token for outer in tokens for token in (outer, *(outer.children or ()))]
    tags = [tag for token in every if token.type.startswith("html") for tag in re.findall("<[^>]*>?", token.content)]
    assert set(tags) <= OWN_TAGS and tags.count("<details>") == tags.count("</details>") == 1
    assert sum(token.type == "fence" for token in every) == 3
    assert not {token.type for token in every} & {"blockquote_open", "code_block", "hr"}


FIELDS = {
    "server": "UPDATE run SET server_version = :text, server_kind = :text",
    "command": "UPDATE run SET command = json_array('howfar', 'run', :text)",
    "reason": "UPDATE trial SET status = 'void', void_reason = :text WHERE arm = (SELECT name FROM arm WHERE place = 2)",
    "arm": "UPDATE arm SET name = :text WHERE place = 2; UPDATE trial SET arm = :text WHERE arm NOT IN (SELECT name FROM arm)",
    "factor": "UPDATE arm SET factors = json_set(factors, '$.path', :text) WHERE place = 2",
    "machine": "UPDATE run SET environment = json_set(environment, '$.kernel', :text, '$.cpu_model', :text)",
    "receipt": "UPDATE trial SET receipt = json_set(receipt, '$.session.server_version', :text)",
}


@pytest.mark.parametrize("form", [[], ["--details"], ["--md"], ["--csv"], ["--json"]], ids=str)
@pytest.mark.parametrize("field", list(FIELDS))
def test_a_run_file_of_somebody_else_controls_no_terminal(
    field: str,
    form: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[file-1]"""
    monkeypatch.setenv("COLUMNS", "2000")  # where lines are wrapped, any word may begin one
    path = tmp_path / "run.howfar"
    path.write_bytes(unpacked(f"{RECORDED}.howfar"))
    with closing(sqlite3.connect(path)) as database:
        for statement in FIELDS[field].split(";"):
            database.execute(statement, {"text": FORGED.replace("\x00", "")} if ":text" in statement else {})
        database.commit()
    code = run_command_line(["report", str(path), *form])
    shown = capsys.readouterr()
    assert code in (0, 6), shown.err
    assert not ACTS.search(shown.out + shown.err)
    if form != ["--csv"]:  # there, a line end may occur between quotes
        assert not any(line.startswith("howfar: a second") for line in (shown.out + shown.err).splitlines())


@pytest.mark.parametrize("field", ["arm", "factor", "machine"])
def test_a_page_shows_what_charts_cannot_draw(field: str, tmp_path: Path) -> None:
    """[file-4] The library that draws charts aborts the process at some control characters."""
    path = tmp_path / "run.howfar"
    path.write_bytes(unpacked("aa-mariadb.howfar"))
    with closing(sqlite3.connect(path)) as database:
        for statement in FIELDS[field].replace("place = 2", "place = 1").split(";"):
            database.execute(statement, {"text": FORGED.replace("\x00", "")} if ":text" in statement else {})
        database.commit()
    assert run_command_line(["report", str(path), f"--html={tmp_path / 'page.html'}"]) == 0
    assert not ACTS.search((tmp_path / "page.html").read_text())


SQL = (Kind.MYSQL, Kind.POSTGRESQL)
LIARS = [(kind, mode) for kind in SQL for mode in ("text-greeting", "text-login", "text-query")]


def said(*words: str) -> str:
    """All output of a command."""
    environment = {**os.environ, "HOWFAR_PASSWORD": "x"}
    done = subprocess.run([*COMMAND, *words], capture_output=True, timeout=100, env=environment)
    assert done.returncode != 70, done.stderr
    return done.stdout.decode() + done.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize("form", rarely_but([[]], [[], ["--json"]]), ids=str)
def test_a_server_controls_no_terminal_by_the_doctor(form: list[str]) -> None:
    """[peer-5]"""
    liars = [*LIARS, (Kind.REDIS, "text-login"), (Kind.REDIS, "text-query"), (Kind.MEMCACHED, "text-login")]
    with ExitStack() as stack:
        shown = said("doctor", "--watch", "0.2", *form, *(stack.enter_context(FakePeer(*each)).dsn for each in liars))
    assert not ACTS.search(shown) and "howfar: a line that" in shown
    assert not any(line.startswith("howfar: a line that") for line in shown.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode"), LIARS)
def test_a_server_controls_no_terminal_by_a_load(kind: Kind, mode: str) -> None:
    """[peer-5]"""
    with FakePeer(kind, mode) as peer:
        shown = said("load", peer.dsn, "oltp_read_only" if kind is Kind.MYSQL else "select-only")
    assert not ACTS.search(shown)
    assert not any(line.startswith("howfar: a line that") for line in shown.splitlines())


def test_no_command_writes_around_the_guard() -> None:
    """[peer-5] Text reaches a terminal only through `screen.py`: nothing else uses a stream's buffer, a descriptor or a console."""
    around = re.compile(r"\bConsole\(|\.buffer\b|unguarded\b|sys\.__std|os\.write\([12]\b|\bopen\([12],|fdopen\([12]\b")
    folder = ROOT / "python" / "howfar" / "cli"
    found = {
        f"{path.name}: {hit.group()}"
        for path in folder.glob("*.py")
        if path.name != "screen.py"
        for hit in around.finditer(path.read_text())
    }
    assert found == set()


def test_an_encoding_without_a_character_gets_the_nearest_one() -> None:
    assert "44 µs … ☃".encode("ascii", "howfar-nearest") == b"44 us ... ?"
    assert "44 µs".encode("latin-1", "howfar-nearest") == "44 µs".encode("latin-1")
