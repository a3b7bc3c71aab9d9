"""A DSN says what it says, refuses what it cannot mean, and never repeats a password."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from howfar.errors import UsageError
from howfar.load.job import joined
from howfar.load.target import ServerAddress, parse_dsn, parse_option_file


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mysql://u@h:3307/d", {"user": "u", "host": "h", "port": 3307, "database": "d"}),
        ("mariadb://h", {"host": "h"}),
        ("mysql://u%40x@h/", {"user": "u@x", "host": "h"}),
        ("mysql://[::1]:33/d", {"host": "::1", "port": 33, "database": "d"}),
        ("mysql:///run/my.sock?user=u&db=d", {"socket": "/run/my.sock", "user": "u", "database": "d"}),
        ("mysql://u@/d?socket=/run/my.sock", {"user": "u", "database": "d", "socket": "/run/my.sock"}),
        ("mysql:///s.sock", {"socket": "/s.sock"}),
        ("mysql://h/d?ssl-mode=required", {"host": "h", "database": "d", "ssl_mode": "REQUIRED"}),
        (
            "mysql://h?ssl-mode=VERIFY_IDENTITY&ssl-ca=a&ssl-cert=b&ssl-key=c&ssl-cipher=X&tls-version=TLSv1.3",
            {
                "host": "h", "ssl_mode": "VERIFY_IDENTITY", "ssl_ca": "a", "ssl_cert": "b", "ssl_key": "c",
                "ssl_cipher": "X", "tls_versions": "1.3",
            },
        ),
        ("mysql://h?compression=zstd&compression-level=3", {"host": "h", "compression": "zstd", "compression_level": 3}),
        (
            "mysql://h?get-server-public-key=0&server-public-key-path=/k.pem",
            {"host": "h", "fetch_server_key": False, "server_key_file": "/k.pem"},
        ),
    ],
)  # fmt: skip
def test_what_a_dsn_says(text: str, expected: dict[str, Any]) -> None:
    assert parse_dsn(text) == ServerAddress(**expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("postgres://h/d", "begins with mysql://"),
        ("mysql://h:99999/d", "cannot be read"),
        ("mysql://h:0/d", "port 0"),
        ("mysql://", "neither a host nor a socket"),
        ("mysql://h/d?socket=/s", "a host and a socket"),
        ("mysql://u@h?user=v", "user twice"),
        ("mysql://h?ssl-mode=PREFERRED", "leaves open what is measured"),
        ("mysql://h?ssl_moed=REQUIRED", "unknown DSN parameter ssl_moed"),
        ("mysql://h?tls-version=1.1", "known versions"),
        ("mysql://h?compression=lz4", "known algorithms"),
        ("mysql://h?compression-level=0", "from 1 to 22"),
        ("mysql://h/d#x", "#"),
    ],
)
def test_what_a_dsn_cannot_mean(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_dsn(text)


@given(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=6, max_size=20))
def test_a_password_is_refused_and_never_repeated(secret: str) -> None:
    secret = f"qq{secret}qq"
    for text in (f"mysql://u:{secret}@h/d", f"mysql://u@h/d?password={secret}", f"mysql:///s.sock?pwd={secret}"):
        with pytest.raises(UsageError, match="password") as caught:
            parse_dsn(text)
        assert secret not in caught.value.message + caught.value.advice


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        address = parse_dsn("mysql://" + text)
    except UsageError:
        return
    assert address.host or address.socket


def test_sources_are_combined() -> None:
    file = ServerAddress(socket="/file.sock", user="of-file", ssl_ca="ca.pem")
    assert joined(ServerAddress(host="h"), ServerAddress(), file) == ServerAddress(
        host="h", port=3306, user="of-file", database="sbtest", ssl_ca="ca.pem"
    )
    assert joined(None, ServerAddress(), file).socket == "/file.sock"
    assert joined(None, ServerAddress(host="h", port=3, socket="/s"), None).host is None, "sysbench: the socket wins"
    assert joined(None, ServerAddress(), None) == ServerAddress(
        host="localhost", port=3306, user="sbtest", database="sbtest"
    )
    with pytest.raises(UsageError, match="by a DSN and by"):
        joined(ServerAddress(host="h"), ServerAddress(user="u"), None)


def test_an_option_file() -> None:
    text = (
        '[mysqld]\nport=1\n[client]\nuser = "a \\"b\\" \\\\ c"\npassword="p#x" # said\nhost=db.example\nsocket=/s\n'
        "protocol=tcp\nport=3399\nloose-skip-ssl\nssl_ca=/ca.pem # my own\n"
    )
    address, password = parse_option_file("my.cnf", text)
    assert address == ServerAddress(user='a "b" \\ c', host="db.example", port=3399, ssl_ca="/ca.pem")
    assert password == "p#x"
    by_socket, none = parse_option_file("my.cnf", "[client]\nhost=localhost\nsocket=/s\n")
    assert (by_socket, none) == (ServerAddress(socket="/s"), None)
    with pytest.raises(UsageError, match=r"my\.cnf:2: port"):
        parse_option_file("my.cnf", "[client]\nport=x\n")
