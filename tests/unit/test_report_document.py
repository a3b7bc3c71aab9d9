"""Every renderer lays out every kind of block, and depends on no experiment."""

from __future__ import annotations

import csv as csv_module
import io
from typing import Any

import altair as alt
import pytest
from markupsafe import escape

from howfar.report import html, terminal
from howfar.report.charts import values
from howfar.report.document import (
    AdviceBlock,
    Answer,
    Block,
    Bullets,
    Card,
    Cell,
    Chart,
    Code,
    Column,
    Details,
    Document,
    Facts,
    Heading,
    PlaceLines,
    Table,
    Text,
    Warnings,
    plain_cells,
    plain_columns,
)
from howfar.report.terminal import FIRST_SCREEN, VISIBLE_LINES, Surroundings, lay_out
from howfar.report.text import as_csv, as_markdown

MAIN = Table(
    "Figures",
    (Column("path", left_aligned=True), Column("queries/s", "95 % interval"), Column("p95", "ms", optional=True)),
    (
        (Cell("socket"), Cell("10,000", "± 50"), Cell("1.25")),
        (Cell("a & <b> | c"), Cell("8,000", "[7,900, 8,100]", share=0.8), Cell("1.75")),
    ),
    ("A note with ≥ 3 %.",),
    main=True,
)


def bar(width: int) -> Any:
    return alt.Chart(values([{"x": 1, "y": 2}])).mark_point().encode(x="x:Q", y="y:Q").properties(width=width)


def sample() -> Document:
    blocks: tuple[Block, ...] = (
        Answer("The socket is <faster> by 25 %.", (Card("socket", "1.25", "of tcp", ("[1.2, 1.3]",)),)),
        Warnings(("busy machine",)),
        MAIN,
        Heading("What to do"),
        AdviceBlock("First.", "Because of 3 %."),
        AdviceBlock("Second.", "Because."),
        Heading("Only a chart follows"),
        Chart("one", "A chart", "How to read it.", bar, Table("", plain_columns("x", "y"), (plain_cells("1", "2"),))),
        Heading("Text"),
        Text("A quiet paragraph.", quiet=True),
        Details("Receipts", (Facts({"tls_version": None, "peer": {"port": 3306, "ok": True}}),)),
        Details("More", (Bullets(("one", "two")), Code(("howfar run paths",)))),
    )
    return Document("howfar: sample", blocks, ({"arm": "a", "qps": 1}, {"arm": "b", "extra": "x"}))


def test_terminal_prints_the_first_screen_and_names_the_rest() -> None:
    text = terminal.render(sample(), 80)
    assert "1. First.\n   Because of 3 %.\n2. Second." in text
    assert "chart" not in text.replace("Charts: --html", "")
    assert "howfar run paths" not in text
    assert "More with --details: Receipts; More." in text


def test_a_command_stands_below_its_advice_as_it_is() -> None:
    command = "howfar run './my shop.toml' --full" + " --rtt 10ms" * 9
    document = Document("howfar: sample", (Heading("What to do"), AdviceBlock("Do this:", "Since.", (command,))))
    assert f"1. Do this:\n   {command}\n   Since." in terminal.render(document, 80)
    assert f"1. **Do this:**\n\n   ```\n   {command}\n   ```\n\n   Since." in as_markdown(document)
    assert f"<pre>{escape(command)}</pre>" in html.render(document)


def test_a_first_screen_that_is_too_long_has_the_first_sentence_of_each_warning() -> None:
    busy = tuple(f"CPU {number} was busy. {'Other programs ran on it. ' * 8}" for number in range(8))
    many = Document("howfar: sample", (*sample().blocks, Warnings(busy)))
    short, whole = terminal.render(many, 100), terminal.render(many, 100, details=True)
    assert short.count("\n") <= FIRST_SCREEN and short.count("was busy.") == 8 and "Other programs" not in short
    assert " ".join(whole.split()).count("Other programs ran on it.") == 64


QUESTION = "Which is faster?"


def test_lines_of_a_step_stand_below_their_places_in_every_form() -> None:
    places = (PlaceLines("my.cnf, then restart", ("[mysqld]", "a = <1>")), PlaceLines("PDO", ("b",)))
    document = Document("howfar: sample", (Heading("What to do"), AdviceBlock("Do this.", "Since.", places=places)))
    assert (
        "1. Do this.\n   Since.\n   my.cnf, then restart:\n     [mysqld]\n     a = <1>\n   PDO:\n     b\n"
        in terminal.render(document, 80)
    )
    assert "   my.cnf, then restart:\n\n   ```\n   [mysqld]\n   a = <1>\n   ```\n\n   PDO:\n" in as_markdown(document)
    assert "<div>my.cnf, then restart:</div><pre>[mysqld]\na = &lt;1&gt;</pre>" in html.render(document)


def test_without_an_answer_its_command_is_in_the_forms_that_do_not_know_the_file() -> None:
    command = "howfar resume FILE --time-budget 10min"
    document = Document("howfar: sample", (Answer("No answer yet.", certainty="Not at all.", command=command),))
    assert f"```\n{command}\n```" in as_markdown(document) and f"<pre>{command}</pre>" in html.render(document)
    assert command not in terminal.render(document, 80), "the terminal has the command with the file's name"


SURROUNDINGS = Surroundings(("Run file: a.howfar",), ("Go on with: howfar resume a.howfar",))


def test_a_document_that_fits_on_a_screen_begins_with_its_answer() -> None:
    small = Document(
        "howfar: sample",
        (Answer("The socket."), MAIN, Heading("What to do"), AdviceBlock("First.", "")),
        question=QUESTION,
    )
    lines = terminal.render(small, 80, surroundings=SURROUNDINGS).splitlines()
    assert len(lines) <= VISIBLE_LINES
    assert lines[:4] == ["Which is faster?", "", "The socket.", ""]
    assert lines[-3:] == ["Run file: a.howfar", "", "Go on with: howfar resume a.howfar"]


@pytest.mark.parametrize("details", [True, False])
def test_a_longer_document_ends_with_its_answer_and_what_to_do(details: bool) -> None:
    long = Document(
        "howfar: sample", (*sample().blocks, Bullets(tuple(f"line {number}" for number in range(9)))), question=QUESTION
    )
    text = terminal.render(long, 80, details=details, surroundings=SURROUNDINGS)
    assert text.startswith("Which is faster?\n\nWarnings\n")
    assert text.endswith(
        "Run file: a.howfar\n\nWhich is faster?\nThe socket is <faster> by 25 %.\n\nWhat to do\n1. First.\n   Because of 3 %.\n"
        "2. Second.\n   Because.\n\nGo on with: howfar resume a.howfar\n"
    )


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("details", [True, False])
def test_the_answer_stays_in_sight_however_long_the_advice(width: int, details: bool) -> None:
    advice = [AdviceBlock(f"Do this. {'And that. ' * 12}", "Since it helps. " * 20) for _ in range(3)]
    wordy = Document("howfar: sample", (Answer("The socket."), MAIN, MAIN, Heading("What to do"), *advice))
    text = terminal.render(wordy, width, details=details, surroundings=SURROUNDINGS)
    assert "The socket." in text.splitlines()[-VISIBLE_LINES:]
    words = " ".join(text.split())
    names_the_steps = "What now 3 steps above; the first: Do this." in words
    assert words.count("And that.") == 3 * 12 and words.count("Do this.") == 3 + names_the_steps
    assert names_the_steps is (words.index("1. Do this.") < words.index("The socket.")), "out of sight, they are named"


def test_an_answer_longer_than_the_screen_needs_no_steps() -> None:
    alone = Document("howfar: sample", (Answer("The socket. " * 60), MAIN), question=QUESTION)
    assert terminal.render(alone, 30).endswith("socket.\n")


def test_terminal_prints_all_with_details() -> None:
    text = terminal.render(sample(), 80, details=True)
    assert "tls version: off" in text and "  ok: yes" in text and "- two" in text
    assert "More with" not in text


@pytest.mark.parametrize("width", [40, 60, 80, 132])
@pytest.mark.parametrize("unicode", [True, False])
def test_terminal_keeps_to_its_width(width: int, unicode: bool) -> None:
    lines = terminal.render(sample(), width, unicode=unicode, details=True).splitlines()
    assert max(map(len, lines)) <= width
    assert unicode or "\n".join(lines).isascii()


def test_optional_columns_go_first_and_only_from_the_first_screen() -> None:
    width = max(map(len, lay_out(MAIN, 200))) - 1
    assert "p95" not in "\n".join(lay_out(MAIN, width, brief=True))
    assert "1.75" in "\n".join(lay_out(MAIN, width))


def test_sentences_are_wrapped_below_the_name_of_their_row() -> None:
    sentence = "a sentence that is far too long for any column of a table, and so is wrapped"
    lines = lay_out(
        Table("", plain_columns("cell", "limit", "evidence"), (plain_cells("tcp", "server CPU", sentence),)), 60
    )
    assert lines[0] == "tcp: limit server CPU"
    assert " ".join(line.strip() for line in lines[1:]) == f"evidence {sentence}"


def test_html_escapes_what_comes_from_data_and_has_no_script() -> None:
    page = html.render(sample())
    assert "a &amp; &lt;b&gt; | c" in page and "&lt;faster&gt;" in page
    assert "<script" not in page and "default-src 'none'" in page
    assert page.count("<svg") == 2 and 'data-label="queries/s 95 % interval"' in page
    assert "--share:80%" in page and page.count('<ol class="advice">') == 1


def test_markdown_has_every_table_and_no_receipt() -> None:
    text = as_markdown(sample())
    assert "| a & &lt;b> \\| c | 8,000<br>[7,900, 8,100] | 1.75 |" in text
    assert "Receipts" not in text and "Only a chart" not in text
    assert "<summary>More</summary>\n\n- one\n- two\n" in text and text.count("</details>") == 1
    assert "\\* extrapolated" in as_markdown(Document("", (Text("* extrapolated"),)))


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_setting_is_broken_between_its_parts(width: int) -> None:
    setting = "paths, quick · mariadb 10.11.19 · link of 0.2 ms and 1 Gb/s · 2 CPUs · 2026-11-29 00:21 UTC"
    lines = terminal.render(Document("", (), setting=setting), width).strip().splitlines()
    assert " · ".join(lines) == setting and all(len(line) <= width for line in lines)


def test_the_first_screen_has_three_lines_of_notes_and_the_details_all() -> None:
    notes = (
        "Long, but this has room on the first line of an answer.",
        "So does this one on the second line of the same answer.",
        "And this one. *: resolved.",
        "Not this " * 9,
    )
    table = Table("", plain_columns("path", "ratio"), (plain_cells("tcp", "0.8 *"),), notes)
    document = Document("", (table, Details("More", (Text("more"),))))
    first, complete = (terminal.render(document, 60, details=details).splitlines() for details in (False, True))
    below = first.index("tcp   0.8 *") + 1
    assert first[below + 3] == "" and "*: resolved." in first[below + 2] and "Not this" not in "".join(first)
    assert any(line.startswith("Not this") for line in complete)


def test_csv_has_every_key_of_every_record() -> None:
    rows = list(csv_module.DictReader(io.StringIO(as_csv(sample()))))
    assert rows == [{"arm": "a", "qps": "1", "extra": ""}, {"arm": "b", "qps": "", "extra": "x"}]


def test_the_parts_of_a_folded_table_have_all_columns_that_tell_its_rows_apart() -> None:
    columns = plain_columns("path", "due/s", *(f"a long head {number}" for number in range(6)))
    rows = tuple(plain_cells("socket", due, *["12,345"] * 6) for due in ("100", "200"))
    heads = [line for line in lay_out(Table("", columns, rows), 60) if "a long head" in line]
    assert len(heads) > 1 and all(line.split()[:2] == ["path", "due/s"] for line in heads)
