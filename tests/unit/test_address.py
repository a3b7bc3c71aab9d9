"""The grammar of addresses: what each text means, what is refused, and that no secret is ever repeated."""

from __future__ import annotations

import csv
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from howfar.address import ParsedTarget, Secret, ServerAddress, looks_like_target, parse
from howfar.errors import UsageError

TABLE = Path(__file__).parents[1] / "data" / "addresses.tsv"


def rows() -> list[tuple[str, str, str]]:
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    found = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return [(row["text"], row["form"], row["says"]) for row in found]


def said(found: ParsedTarget) -> dict[str, str]:
    """The fields of an address that are set, as text."""
    values: dict[str, Any] = {field.name: getattr(found.address, field.name) for field in fields(ServerAddress)}
    if found.password is not None:
        values["password"] = found.password.reveal()
    return {name: str(value) for name, value in values.items() if value is not None}


ACCEPTED = [(text, form, says) for text, form, says in rows() if form != "refused"]
REFUSED = [(text, says) for text, form, says in rows() if form == "refused"]


def test_the_table_is_large_enough() -> None:
    assert len(rows()) >= 120


@pytest.mark.parametrize(("text", "form", "says"), ACCEPTED, ids=[text for text, _, _ in ACCEPTED])
def test_what_a_text_says(text: str, form: str, says: str) -> None:
    """[load-4] [load-5] [load-7] [load-8] [load-10] [load-11]"""
    found = parse(text)
    assert found.form == form
    assert said(found) == dict(word.split("=", 1) for word in shlex.split(says))


@pytest.mark.parametrize(("text", "why"), REFUSED, ids=[text for text, _ in REFUSED])
def test_what_is_refused_says_why(text: str, why: str) -> None:
    """[load-6] [load-11]"""
    with pytest.raises(UsageError) as refused:
        parse(text)
    message = f"{refused.value.message} {refused.value.advice}"
    assert why in message
    assert "secret" not in message and "ret@" not in message


def test_what_is_ignored_is_said() -> None:
    notes = parse("mysql://127.0.0.1/d?charset=utf8mb4&parseTime=true&connect_timeout=5").notes
    assert [note.partition(":")[0] for note in notes] == [
        "charset is ignored", "parseTime is ignored", "connect-timeout is ignored"
    ]  # fmt: skip
    assert any("the host is ignored" in note for note in parse("mysql://u@h/d?socket=/s/s").notes)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("mysql://u@localhost/d", "TCP"),
        ("mysql+pymysql://u@localhost/d", "TCP"),
        ("mysql+mysqldb://u@localhost/d", "the server's socket"),
        ("jdbc:mysql://localhost/d", "TCP"),
        ("u@tcp(localhost)/d", "TCP"),
        ("mysql:host=localhost;dbname=d", "the server's socket"),
    ],
)
def test_a_note_says_what_localhost_means(text: str, path: str) -> None:
    assert any(note.startswith(f"localhost means {path}") for note in parse(text).notes)


def test_what_can_name_a_server_on_a_command_line() -> None:
    for word in ("localhost", "db.internal", "h:1", "/s", "u@h", "host=h", "::1", "mysql://", "service=s"):
        assert looks_like_target(word)
    for word in ("doctor", "load", "shop", "", "-h", "--server=h:1", "oltp_read_only"):
        assert not looks_like_target(word)


def test_a_secret_is_never_shown() -> None:
    secret = Secret("hunter22")
    found = ParsedTarget(ServerAddress(host="h"), secret)
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret:>20}", f"{secret!r}", repr(found), str(found)):
        assert "hunter22" not in shown
    assert secret.reveal() == "hunter22" and secret == Secret("hunter22") and secret != Secret("x")
    assert not Secret() and secret
    with pytest.raises(TypeError):
        secret.__reduce__()


FORMS = [
    "mysql://u:{}@h/d", "mysql://u:{}@h:3306/d?ssl-mode=REQUIRED", "mysql://h/d?password={}", "mysql:///s.sock?pwd={}",
    "mariadb://u:{}@/d", "mysql2://u:{}@[::1]/d", "mysql+pymysql://u:{}@h/d", "mysql+mysqldb://u:{}@/d",
    "postgresql://u:{}@h/d", "postgres://u:{}@h:1/d?sslmode=require", "postgresql://h/d?user=u&password={}",
    "postgresql://:{}@h", "postgresql+psycopg://u:{}@h/d", "postgresql+asyncpg://u:{}@h/d?ssl=require",
    "host=h password={} dbname=d", "password='{}' host=h", "dbname=d password={}",
    "jdbc:mysql://h:3306/db?user=u&password={}", "jdbc:mysql://u:{}@h/db", "jdbc:mariadb://h/d?password={}&user=u",
    "jdbc:postgresql://h/d?user=u&password={}", "u:{}@tcp(h:3306)/d", "u:{}@unix(/s)/d?tls=true", "u:{}@/d",
    "Server=h;Pwd={};Uid=u", "Host=h;Password={};Username=u", "mysql:host=h;password={}", "pgsql:host=h;password={}",
    "redis://:{}@h:6379/0", "redis://u:{}@h", "rediss://h?password={}", "memcached://u:{}@h",
    # Malformed, or not a form at all.
    "u:{}@h:3306", "u:{}@h/d", "mysql//u:{}@h", "mysql:/u:{}@h/db", "mysql:u:{}@h", "://u:{}@h", "//u:{}@h/d",
    "foo://u:{}@h", "mysql://u:{}@h:port/d", "mysql://u:{}@h/d#f", "mysql://u:{}@h1,h2/d", "mysql://h?pasword={}",
    "mysql://h/d?ssl-mode={}", "mysql://u:{}@h/d?unknown=1", "postgresql://u:{}@h:x/d", "postgresql://u:{}@[h/d",
    "postgresql://h?pass={}", "postgresql://h?sslpassword={}", "postgresql://h?oauth_client_secret={}&a",
    "mysql://h?{}=1", "host=h pasword={}", "host=h password={} x", "host=h password='{}",
    "jdbc:mysql://h/d?passwrd={}", "jdbc:mysql:loadbalance://u:{}@a,b/d", "jdbc:postgresql://u:{}@h/d",
    "jdbc:mysql://h/d?trustCertificateKeyStorePassword={}", "u:{}@tcp(h:3306/d", "u:{}@tcp(h)", "u:{}@udp(h)/d",
    "Server=h;Pwd={};x", "Server=h;Passwd={}", "AccountKey={}", "redis://h/{}", "-p{}", "--password={}",
    "mongodb+srv://u:{}@h/d", "memcached://h?password={}", "sqlserver://u:{}@h", "mysql+pyodbc://u:{}@h",
]  # fmt: skip
"""Texts with a password in each form, well-formed and malformed."""
PLANTED = "Qz7xK2wV9"
"""Marker in each password, so that a message that repeats any part of it is found."""


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(FORMS), st.text(st.sampled_from("/?#@:%&=;,'\"\\ ()[]+.ab1"), max_size=8), st.booleans())
def test_no_secret_is_repeated(form: str, around: str, first: bool) -> None:
    """[cli-1] Special characters may end a password early, so that its rest is taken for a host, a path or a parameter."""
    text = form.format(f"{PLANTED}{around}{PLANTED}" if first else f"{around}{PLANTED}")
    try:
        found = parse(text)
    except UsageError as error:
        assert PLANTED not in f"{error.message}{error.advice}{error!r}"
        assert error.__cause__ is None or PLANTED not in repr(error.__cause__)
        return
    assert PLANTED not in repr(found)
    assert PLANTED not in repr(found.address), form


@settings(max_examples=300, deadline=None)
@given(
    st.text(max_size=60),
    st.sampled_from(["", "mysql://", "postgresql://", "jdbc:mysql://", "redis://", "host=", "u@tcp("]),
)
def test_no_text_breaks_the_reader(text: str, before: str) -> None:
    try:
        parse(before + text)
    except UsageError:
        return
