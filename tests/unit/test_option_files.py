"""Option files are read as MySQL's and MariaDB's clients read them: by text, and against my_print_defaults."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from howfar.address import Secret, ServerAddress
from howfar.address.option_files import GROUPS, Files, parse, read_options
from howfar.cli.target import find_server, read_option_file
from howfar.errors import UsageError

DISK = Files(
    lambda name: Path(name).read_text() if Path(name).exists() else None,
    lambda folder: [str(path) for path in Path(folder).iterdir()] if Path(folder).is_dir() else None,
)


def read(text: str) -> tuple[ServerAddress, str | None]:
    """The address and the password that a file with this text contains."""
    found = parse("my.cnf", Files(lambda name: text if name == "my.cnf" else None, lambda folder: None))
    return found.address, None if found.password is None else found.password.reveal()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("[client]\nhost=h\nssl\n", {"host": "h", "ssl_mode": "REQUIRED"}, id="load-1 ssl"),
        pytest.param("[client]\nhost=h\nssl-verify-server-cert\n", {"host": "h", "ssl_mode": "VERIFY_IDENTITY"}, id="load-1 verify"),
        pytest.param("[client]\nhost=h\nssl-ca=/ca\n", {"host": "h", "ssl_mode": "VERIFY_CA", "ssl_ca": "/ca"}, id="load-1 ca"),
        pytest.param("[client]\nhost=h\nssl_cert=c\nssl_key=k\n",
                     {"host": "h", "ssl_mode": "REQUIRED", "ssl_cert": "c", "ssl_key": "k"}, id="load-1 cert"),
        pytest.param("[client]\nhost=h\nssl\nskip-ssl\n", {"host": "h", "ssl_mode": "DISABLED"}, id="skip-ssl"),
        pytest.param("[client]\nhost=h\nssl-mode=VERIFY_CA\nssl-ca=c\n",
                     {"host": "h", "ssl_mode": "VERIFY_CA", "ssl_ca": "c"}, id="mode"),
        pytest.param("[client]\nhost=h\nssl=0\n", {"host": "h", "ssl_mode": "DISABLED"}, id="ssl=0"),
        pytest.param("[client]\nhost=h\nssl-ca=c\nskip-ssl\n", {"host": "h", "ssl_mode": "DISABLED", "ssl_ca": "c"}, id="skip later"),
        pytest.param("[client]\nhost=h\nskip-ssl\nssl-ca=c\n",
                     {"host": "h", "ssl_mode": "VERIFY_CA", "ssl_ca": "c"}, id="skip earlier"),
        pytest.param("[client]\nhost=h\nssl-verify-server-cert\nskip-ssl\n",
                     {"host": "h", "ssl_mode": "VERIFY_IDENTITY"}, id="load-1 verify before skip"),
        pytest.param("[client-server]\nport=3311\n[client]\nhost=127.0.0.1\nuser=bench\n",
                     {"host": "127.0.0.1", "port": 3311, "user": "bench"}, id="load-2 client-server-port"),
        pytest.param("[mysqld]\nport=3311\n[client-server]\nsocket=/s\n[client]\nuser=bench\ndatabase=bench\n",
                     {"socket": "/s", "user": "bench", "database": "bench"}, id="load-2 client-server-socket"),
        pytest.param("[client-mariadb]\nhost=127.0.0.1\nuser=bench\n",
                     {"host": "127.0.0.1", "user": "bench"}, id="load-2 client-mariadb"),
        pytest.param("[mysql]\nhost=127.0.0.1\nuser=bench\nprompt=x\nno-auto-rehash\n",
                     {"host": "127.0.0.1", "user": "bench"}, id="load-2 mysql"),
        pytest.param("[client]\nuser=u\n", {"user": "u", "localhost_is_socket": True}, id="no host is the socket"),
        pytest.param("[client]\nhost=localhost\nport=3307\n", {"localhost_is_socket": True}, id="localhost is the socket"),
        pytest.param("[client]\nhost=localhost\nprotocol=TCP\nport=7\n", {"host": "localhost", "port": 7}, id="protocol"),
        pytest.param("[client]\nhost=h\nsocket=/s\n", {"host": "h"}, id="a host before a socket"),
        pytest.param("[client]\nhost=h\nsocket=/s\nprotocol=socket\n", {"socket": "/s"}, id="protocol socket"),
        pytest.param("[client]\nhost=h\nport=0\n", {"host": "h"}, id="port 0"),
        pytest.param("[client]\nhost=a\n[mysqldump]\nhost=b\n[mysql]\nhost=c\n", {"host": "c"}, id="the last one counts"),
        pytest.param("[client]\nloose-host=h\nenable-cleartext-plugin\ncompress\n",
                     {"host": "h", "allow_cleartext_password": True, "compression": "zlib"}, id="prefixes"),
        pytest.param('[client]\nuser = "a \\"b\\" \\\\ c"\nhost=h # mine\n', {"user": 'a "b" \\ c', "host": "h"}, id="quotes"),
    ],
)  # fmt: skip
def test_what_a_file_says(text: str, expected: dict[str, Any]) -> None:
    assert read(text)[0] == ServerAddress(protocol="mysql", **expected)


@pytest.mark.parametrize(
    ("line", "password"),
    [
        pytest.param("password = ab#cd", "ab", id="load-3 hash"),
        pytest.param('password = "ab#cd"', "ab#cd", id="load-3 hash quoted"),
        pytest.param("password='a\\tb' # x", "a\tb", id="load-3 escape"),
        pytest.param("password=a'b#c'd", "a'b#c'd", id="load-3 quotes inside"),
        pytest.param("pass=x", "x", id="abbreviated"),
        pytest.param("password=", "", id="empty"),
    ],
)
def test_a_password_is_the_one_that_the_clients_send(line: str, password: str) -> None:
    assert read(f"[client]\n{line}\n")[1] == (password or None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("[client]\nssl-capath=/c\n", "my.cnf:2 is not supported", id="load-1 capath"),
        pytest.param("[client]\nssl-crl=/c\n", "revocation", id="load-1 crl"),
        pytest.param("[client]\nssl-fp=aa\n", "fingerprints", id="load-1 fingerprint"),
        pytest.param("[client]\nssl-made-up=1\n", "an option of TLS is not known", id="load-1 unknown"),
        ("[client]\nport=x\n", "my.cnf:2: ports are"),
        ("[client]\npassword\n", "password has no value"),
        ("host=h\n", "before the first group"),
        ("[client\nhost=h\n", "no ]"),
        ("[client]\n!includedir /nowhere\n", "cannot be read"),
    ],
)
def test_what_is_refused_names_the_line(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(text)
    assert why in refused.value.message


def test_files_are_included(tmp_path: Path) -> None:
    """[load-2] As distributions ship them: the settings are in the files of a directory."""
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "b.cnf").write_text("[client]\nhost=127.0.0.1\nuser=bench\n")
    (tmp_path / "conf.d" / "a.cnf").write_text("[client]\nhost=other\n")
    (tmp_path / "conf.d" / "c.txt").write_text("[client]\nhost=never\n")
    (tmp_path / "more.cnf").write_text(f"[client]\nport=7\n!include {tmp_path}/my.cnf\n")
    file = tmp_path / "my.cnf"
    file.write_text(
        f"[client-server]\n\n!includedir {tmp_path}/conf.d\n!include {tmp_path}/none.cnf\n[client]\npassword=x\n"
    )
    found = read_option_file(file, {}, lambda _: None)
    assert (found.address.host, found.address.user, found.password) == ("127.0.0.1", "bench", Secret("x"))
    file.write_text(f"!include {tmp_path}/more.cnf\n")
    with pytest.raises(UsageError, match="include each other"):
        read_option_file(file, {}, lambda _: None)


def test_a_file_that_everybody_can_write_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "my.cnf"
    file.write_text("[client]\nhost=h\n")
    file.chmod(0o666)
    notes: list[str] = []
    assert read_option_file(file, {}, notes.append).address.host is None
    assert "every user can write to it" in notes[0]


def test_the_socket_is_the_usual_one(tmp_path: Path) -> None:
    """[load-2]"""
    file = tmp_path / "my.cnf"
    file.write_text("[client]\nuser=u\n")
    found = find_server(None, defaults_file=file, environment={"MYSQL_UNIX_PORT": "/of/env.sock"})
    assert (found.address.socket, found.address.host) == ("/of/env.sock", None)


_WORDS = st.sampled_from(
    ["password", "=", " ", "\t", "a", "#", "'", '"', "\\", "n", "s", "[client]", "\n", "[mysql", "]", ";", "host"]
)


@pytest.mark.skipif(shutil.which("my_print_defaults") is None, reason="my_print_defaults is not installed")
@settings(max_examples=80, deadline=None)
@given(words=st.lists(_WORDS, max_size=16))
def test_lines_are_read_as_my_print_defaults_reads_them(
    words: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """[load-3] This holds for comments, quotes and escapes."""
    file = tmp_path_factory.mktemp("cnf") / "my.cnf"
    file.write_text("[client]\nuser=x\n" + "".join(words) + "\n")
    done = subprocess.run(
        ["my_print_defaults", f"--defaults-file={file}", *GROUPS], capture_output=True, text=True, timeout=20
    )
    try:
        ours = [
            f"--{line.name}" + ("" if line.value is None else f"={line.value}")
            for line in read_options(str(file), DISK)
        ]
    except UsageError:
        assert done.returncode != 0
        return
    assert done.returncode == 0
    assert "\n".join(ours) == done.stdout.removesuffix("\n")
