"""How an application's arguments and environment are changed to name the tap in place of one server, in any form, and nothing else."""

from __future__ import annotations

import os
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from howfar.address import parse
from howfar.contract.messages import TcpTarget
from howfar.errors import UsageError
from howfar.recording.insertion import Insertion, NamedServer, make_insertion

_TAP = TcpTarget(host="127.0.0.9", port=42747)


def _inserted(server: str) -> Insertion:
    """The insertion for a server that a test names; a host name stands for 10.0.0.2, localhost for 127.0.0.1."""
    host, _, port = server.rpartition(":")
    is_name = host.islower() and ":" not in host
    protocol = {"3306": "mysql", "5432": "postgresql"}[port]
    number = "127.0.0.1" if host == "localhost" else "10.0.0.2" if is_name else host.strip("[]")
    return make_insertion(
        NamedServer(TcpTarget(host=number, port=int(port)), host if is_name else None, protocol), _TAP
    )


def _environment(server: str, monkeypatch: pytest.MonkeyPatch, **variables: str) -> dict[str, str]:
    monkeypatch.setattr("os.environ", variables)
    return _inserted(server).environment()


@pytest.mark.parametrize(
    ("server", "variables", "expected"),
    [
        pytest.param(
            "dbhost:5432",
            {"A": "postgres://app@dbhost:5432/shop"},
            {"A": "postgres://app@127.0.0.9:42747/shop"},
            id="rec-4-url",
        ),
        pytest.param(
            "dbhost:5432",
            {"PGHOST": "dbhost", "PGPORT": "5432"},
            {"PGHOST": "127.0.0.9", "PGPORT": "42747"},
            id="rec-4-libpq",
        ),
        pytest.param(
            "dbhost:3306",
            {"MYSQL_HOST": "dbhost", "MYSQL_TCP_PORT": "3306"},
            {"MYSQL_HOST": "127.0.0.9", "MYSQL_TCP_PORT": "42747"},
            id="rec-4-mysql",
        ),
        pytest.param(
            "dbhost:5432",
            {"DB_HOST": "dbhost", "DB_PORT": "5432"},
            {"DB_HOST": "127.0.0.9", "DB_PORT": "42747"},
            id="rec-5-pair",
        ),
        pytest.param(
            "127.0.0.1:5432",
            {"DB_HOST": "127.0.0.1", "DB_PORT": "5432"},
            {"DB_HOST": "127.0.0.9", "DB_PORT": "42747"},
            id="rec-5-number",
        ),
        pytest.param(
            "127.0.0.1:5432",
            {"PGHOST": "127.0.0.1"},
            {"PGHOST": "127.0.0.9", "PGPORT": "42747"},
            id="rec-5-libpq-alone",
        ),
        pytest.param(
            "127.0.0.1:5432",
            {"A": "postgres://app@127.0.0.1/shop"},
            {"A": "postgres://app@127.0.0.9:42747/shop"},
            id="rec-5-url",
        ),
        pytest.param(
            "127.0.0.1:3306",
            {"A": "mysql:host=127.0.0.1;dbname=shop"},
            {"A": "mysql:host=127.0.0.9;port=42747;dbname=shop"},
            id="rec-5-pdo",
        ),
        pytest.param(
            "127.0.0.1:5432",
            {"A": "host=127.0.0.1 dbname=shop"},
            {"A": "host=127.0.0.9 port=42747 dbname=shop"},
            id="rec-5-keywords",
        ),
        pytest.param(
            "127.0.0.1:5432",
            {"A": "postgres://app@localhost:5432/shop"},
            {"A": "postgres://app@127.0.0.9:42747/shop"},
            id="localhost",
        ),
        pytest.param(
            "127.0.0.1:3306", {"A": "app:x@tcp(127.0.0.1:3306)/shop"}, {"A": "app:x@tcp(127.0.0.9:42747)/shop"}, id="go"
        ),
        pytest.param(
            "[::1]:5432", {"A": "postgres://app@[::1]:5432/shop"}, {"A": "postgres://app@127.0.0.9:42747/shop"}, id="v6"
        ),
        pytest.param(
            "127.0.0.1:3306", {"X_PROTOCOL": "127.0.0.1:33060"}, {"X_PROTOCOL": "127.0.0.1:33060"}, id="rec-6-port"
        ),
        pytest.param(
            "127.0.0.1:3306", {"X_PROTOCOL": "localhost:33060"}, {"X_PROTOCOL": "localhost:33060"}, id="rec-6-localhost"
        ),
        pytest.param("127.0.0.1:3306", {"OTHER": "mylocalhost:3306"}, {"OTHER": "mylocalhost:3306"}, id="rec-6-host"),
        pytest.param("127.0.0.1:3306", {"OTHER": "1127.0.0.1:3306"}, {"OTHER": "1127.0.0.1:3306"}, id="rec-6-number"),
        pytest.param("127.0.0.1:3306", {"LOG": "{host} {port} {path}"}, {"LOG": "{host} {port} {path}"}, id="rec-7"),
        pytest.param(
            "127.0.0.1:3306",
            {"DB_HOST": "localhost", "DB_PORT": "3306"},
            {"DB_HOST": "localhost", "DB_PORT": "3306"},
            id="a socket to MySQL's clients",
        ),
        pytest.param(
            "127.0.0.1:5432",
            {"DB_HOST": "127.0.0.1", "DB_PORT": "5433"},
            {"DB_HOST": "127.0.0.1", "DB_PORT": "5433"},
            id="another server",
        ),
        pytest.param("127.0.0.1:5432", {"BIND": "127.0.0.1"}, {"BIND": "127.0.0.1"}, id="a host that is no server"),
    ],
)
def test_variables_that_name_the_server_name_the_tap(
    server: str, variables: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[rec-4] [rec-5] [rec-6] [rec-7] Both in the given form and in equivalent ones; other servers and texts are left as they are."""
    assert _environment(server, monkeypatch, **variables) == expected


@pytest.mark.parametrize(
    ("server", "words", "expected"),
    [
        pytest.param(
            "dbhost:5432", "postgres://app@dbhost:5432/shop", "postgres://app@127.0.0.9:42747/shop", id="rec-4"
        ),
        pytest.param(
            "127.0.0.1:3306", "mysql -h 127.0.0.1 -P 3306 shop", "mysql -h 127.0.0.9 -P 42747 shop", id="rec-5-flags"
        ),
        pytest.param("127.0.0.1:3306", "mysql -h127.0.0.1 -P3306", "mysql -h127.0.0.9 -P42747", id="rec-5-joined"),
        pytest.param(
            "dbhost:5432", "psql --port=5432 --host=dbhost", "psql --port=42747 --host=127.0.0.9", id="rec-5-long"
        ),
        pytest.param("127.0.0.1:5432", "psql -h 127.0.0.1 -p 5432", "psql -h 127.0.0.9 -p 42747", id="rec-5-psql"),
        pytest.param("127.0.0.1:3306", "mysql -h 127.0.0.1 -p3306", "mysql -h 127.0.0.1 -p3306", id="a password"),
        pytest.param("127.0.0.1:3306", "mysql -h 127.0.0.1 -P 3307", "mysql -h 127.0.0.1 -P 3307", id="another port"),
        pytest.param("127.0.0.1:3306", "app --db={host}:{port}", "app --db=127.0.0.9:42747", id="placeholders"),
        pytest.param(
            "127.0.0.1:3306", "env DSN=mysql://u@127.0.0.1/d app", "env DSN=mysql://u@127.0.0.9:42747/d app", id="env"
        ),
    ],
)
def test_arguments_that_name_the_server_name_the_tap(server: str, words: str, expected: str) -> None:
    assert _inserted(server).argv(words.split()) == expected.split()
    assert _inserted(server).argv(["sh", "-c", words])[2] == expected or "env" in words, "in a line for a shell too"


_FORMS = (
    "postgresql://{user}:{password}@{host}{port}/shop",
    "postgres://{host}{port}/shop?application_name=a",
    "jdbc:postgresql://{host}{port}/shop?user={user}&password={password}",
    "postgresql+psycopg://{user}:{password}@{host}{port}/shop",
    "mysql://{user}:{password}@{host}{port}/shop",
    "host={host}{pair} user={user} password={password} dbname=shop",
    "pgsql:host={host};dbname=shop{pair}",
    "redis://:{password}@{host}{port}/0",
)
_WORD = st.text("abcxyz0127.-_", min_size=1, max_size=9).filter(lambda word: word[0].isalpha())


@given(
    form=st.sampled_from(_FORMS),
    host=st.sampled_from(["dbhost", "10.0.0.2", "DBHOST", "dbhost2", "mydbhost", "110.0.0.2", "10.0.0.20", "db.host"]),
    port=st.sampled_from([None, 5432, 54320, 3306, 6379]),
    user=_WORD,
    password=_WORD,
)
def test_an_address_in_any_form_names_the_tap_if_it_named_the_server(
    form: str, host: str, port: int | None, user: str, password: str
) -> None:
    """[rec-4] [rec-5] [rec-6] All else in a changed text keeps its meaning; a text that names another server stays as it is."""
    apart = ";" if form.startswith("pgsql") else " "
    text = form.format(
        user=user,
        password=password,
        host=host,
        port=f":{port}" if port else "",
        pair=f"{apart}port={port}" if port else "",
    )
    rewriter = _inserted("dbhost:5432").rewriter
    assert rewriter is not None
    changed = rewriter.rewrite_text(text)
    try:
        before = parse(text)
    except UsageError:
        assert changed == text
        return
    after = parse(changed)
    default = {"postgresql": 5432, "mysql": 3306, "redis": 6379}[cast(str, before.address.protocol or "postgresql")]
    names_it = host.lower() in ("dbhost", "10.0.0.2") and (port or default) == 5432
    place = ("127.0.0.9", 42747) if names_it else (before.address.host, before.address.port)
    assert (after.address.host, after.address.port) == place
    assert (after.password, after.address.user) == (before.password, before.address.user)
    assert after.address.database == before.address.database
    assert names_it or changed == text


def test_what_was_not_replaced_is_said_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """[rec-5] The advice names the variable, not its value, which may contain a password."""
    monkeypatch.setattr("os.environ", {"DB_HOST": "127.0.0.1", "DSN": "x:hush@127.0.0.1", "X": "127.0.0.1:33060"})
    advice = _inserted("127.0.0.1:3306").advice(["app", "-h", "127.0.0.1"])
    assert "DB_HOST, DSN and an argument" in advice and "hush" not in advice
    monkeypatch.setattr("os.environ", {})
    assert "DB_HOST and DB_PORT" in _inserted("127.0.0.1:3306").advice(["app"])


def test_what_was_replaced_is_not_said_to_stay_where_the_tap_has_the_servers_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[rec-5] In a host and port pair, only the port changes then."""
    monkeypatch.setattr("os.environ", {"DB_HOST": "127.0.0.1", "DB_PORT": "3306", "PGHOST": "127.0.0.1"})
    server, tap = TcpTarget(host="127.0.0.1", port=3306), TcpTarget(host="127.0.0.1", port=42747)
    inserted = make_insertion(NamedServer(server, None, "mysql"), tap)
    advice = inserted.advice(["app", "-h", "127.0.0.1", "-P", "3306", "postgres://127.0.0.1:3306/d"])
    assert "not replaced in PGHOST: it stands there without its port" in advice
    monkeypatch.delitem(os.environ, "PGHOST")
    assert "Is --server the address that it uses?" in inserted.advice(["app"])


def test_a_name_that_was_replaced_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """[rec-18] The tap's address removes the cost of its lookup."""
    monkeypatch.setattr("os.environ", {"A": "postgres://localhost:5432/"})
    of_localhost = _inserted("localhost:5432").rewriter
    assert of_localhost is not None and of_localhost.replaced_host_names(
        ["app"], {"A": "postgres://localhost:5432/"}
    ) == ["localhost"]
    assert of_localhost.replaced_host_names(["127.0.0.1:5432"], {}) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "mysqldump -h 10.0.0.2 -P 3306 shop | mysql -h 10.0.0.9 -P 3306 shop",
            "mysqldump -h 127.0.0.9 -P 42747 shop | mysql -h 10.0.0.9 -P 3306 shop",
        ),
        (
            "x -P 3306 -h 10.0.0.9 y --port=3306 --host=10.0.0.2",
            "x -P 3306 -h 10.0.0.9 y --port=42747 --host=127.0.0.9",
        ),
        ("copy --from 10.0.0.2:3306:3306", "copy --from 10.0.0.2:3306:3306"),
        ("x -h 10.0.0.9 -P 3306 y -h 10.0.0.2", "x -h 10.0.0.9 -P 3306 y -h 10.0.0.2"),
    ],
)
@pytest.mark.parametrize("is_one", [True, False])
def test_the_port_beside_another_host_is_another_servers(words: str, expected: str, is_one: bool) -> None:
    """[rec-6] Both as one argument, as for a shell, and as several."""
    rewriter = _inserted("10.0.0.2:3306").rewriter
    assert rewriter is not None
    given = [words] if is_one else words.split(" ")
    assert " ".join(rewriter.rewrite_arguments(given)) == expected


@pytest.mark.parametrize(
    ("variables", "is_replaced"),
    [
        ({"DB_HOST": "10.0.0.2", "DB_READ_HOST": "10.0.0.9", "DB_PORT": "3306"}, False),
        ({"DB_HOST": "10.0.0.2", "DB_READ_HOST": "10.0.0.9", "DB_READ_PORT": "3306", "DB_PORT": "3306"}, True),
        ({"DB_HOST": "10.0.0.2", "DB_READ_HOST": "10.0.0.2", "DB_PORT": "3306"}, True),
        ({"DB_HOST": "10.0.0.2", "REDIS_HOST": "10.0.0.9", "DB_PORT": "3306"}, True),
        ({"HOST": "10.0.0.2", "REDIS_HOST": "10.0.0.9", "PORT": "3306"}, True),
        ({"DB_SERVER": "10.0.0.2", "DB_SERVER_PORT": "3306"}, True),
    ],
)
def test_a_port_that_another_host_shares_stays(
    variables: dict[str, str], is_replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[rec-6] Otherwise the replica would get the tap's port."""
    after = _environment("10.0.0.2:3306", monkeypatch, **variables)
    assert (after != variables) is is_replaced
    assert all(after[name] == value for name, value in variables.items() if value == "10.0.0.9")
    if not is_replaced:
        assert "DB_HOST" in _inserted("10.0.0.2:3306").advice(["app"])
