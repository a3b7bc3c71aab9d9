"""Targets on the command line: sources of a login, numeric addresses, and passwords that neither a message nor `ps` shows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.test_address import FORMS, PLANTED

from howfar.address import Secret, ServerAddress
from howfar.cli.hide_arguments import may_hold_password
from howfar.cli.main import run_command_line
from howfar.cli.target import (
    find_server,
    find_system_ca_file,
    numeric_target,
    resolve_host,
    resolve_tls_mode,
    server_at,
)
from howfar.contract.messages import TcpTarget, UnixTarget
from howfar.errors import UsageError

ALONE = {"HOME": "/nonexistent"}


# ---------------------------------------------------------------- where a login comes from


def test_a_password_in_a_target_is_used_with_one_note() -> None:
    found = find_server("mysql://u:hunter22@127.0.0.1/d", environment=ALONE)
    assert found.password == Secret("hunter22")
    (note,) = found.notes
    assert "other users" in note and "--env NAME" in note and "hunter22" not in note
    by_variable = find_server(None, env_name="DATABASE_URL", environment={"DATABASE_URL": "mysql://u:x@127.0.0.1/d"})
    assert by_variable.password == Secret("x") and by_variable.notes == ()
    with pytest.raises(UsageError, match="no such variable"):
        find_server(None, env_name="DATABASE_URL", environment=ALONE)
    with pytest.raises(UsageError, match="by a target and by"):
        find_server("mysql://h", env_name="DATABASE_URL", environment=ALONE)


def test_passwords_are_those_of_the_protocol(tmp_path: Path) -> None:
    """A password for another kind of server is not sent."""
    environment = {**ALONE, "MYSQL_PWD": "m", "PGPASSWORD": "p", "REDISCLI_AUTH": "r"}
    targets = {"mysql://127.0.0.1": "m", "postgresql://127.0.0.1": "p", "redis://127.0.0.1": "r", "127.0.0.1:3306": "m"}
    for text, password in {**targets, "127.0.0.1:9999": "", "memcached://127.0.0.1": ""}.items():
        assert find_server(text, environment=environment).password == Secret(password), text
    file = tmp_path / "secret"
    file.write_text("of-file\n")
    file.chmod(0o600)
    explicit = find_server("postgresql://u:in-target@127.0.0.1", password_file=file, environment=environment)
    assert explicit.password == Secret("of-file")


def test_a_port_that_is_usual_says_which_server_it_is() -> None:
    assert find_server("127.0.0.1:5432", environment=ALONE).address.protocol == "postgresql"
    assert find_server("127.0.0.1:9999", environment=ALONE).address.protocol is None


def test_a_directory_is_that_of_postgresql(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no socket in it"):
        find_server(str(tmp_path), environment=ALONE)
    (tmp_path / ".s.PGSQL.7").touch()
    (tmp_path / ".s.PGSQL.7.lock").touch()
    assert find_server(str(tmp_path), environment=ALONE).address.socket == f"{tmp_path}/.s.PGSQL.7"
    (tmp_path / ".s.PGSQL.8").touch()
    address = find_server(str(tmp_path), environment=ALONE).address
    assert (address.protocol, address.socket) == ("postgresql", f"{tmp_path}/.s.PGSQL.5432")


def test_libpqs_sources(tmp_path: Path) -> None:
    """[load-8] [load-9] A fault in another section of a service file is ignored, and so is a variable for other programs."""
    file = tmp_path / "services.conf"
    file.write_text(
        "[mine]\nhost=127.0.0.1\nport=5432\ndbname=bench\nuser=bench\n\n[limits]\noptions=-c statement_timeout=5000\n"
        "[directory]\nldap://directory.example/\nhost=127.0.0.1\n"
    )
    environment = {
        **ALONE,
        "PGSERVICEFILE": str(file),
        "PGSERVICE": "mine",
        "PGOPTIONS": "-c x=1",
        "PGTARGETSESSIONATTRS": "primary",
    }
    address = find_server("postgresql://", environment=environment).address
    assert (address.host, address.user, address.database, address.options) == ("127.0.0.1", "bench", "bench", "-c x=1")
    named = find_server(f"service=mine servicefile={file}", environment=ALONE).address
    assert (named.host, named.user) == ("127.0.0.1", "bench")
    with pytest.raises(UsageError, match="LDAP"):
        find_server("service=directory", environment={**environment, "PGSERVICE": ""})
    with pytest.raises(UsageError, match="not supported"):
        find_server("postgresql://127.0.0.1", environment={**ALONE, "PGREQUIREPEER": "postgres"})


def test_the_authorities_of_the_machine_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """[load-12] OpenSSL's own default comes first, which is another file on each distribution."""
    own = tmp_path / "own.pem"
    own.write_text("x")
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    assert find_system_ca_file() == str(own)
    for text in ("postgresql://h?sslmode=verify-full&sslrootcert=system", "mysql://h?tls=true"):
        address = find_server(text, environment=ALONE).address
        assert (address.ssl_mode, address.ssl_ca) == ("VERIFY_IDENTITY", str(own))


def test_channel_binding_asks_for_tls() -> None:
    assert find_server("host=h channel_binding=require", environment=ALONE).address.ssl_mode == "REQUIRED"
    with pytest.raises(UsageError, match="channel_binding"):
        find_server("host=h channel_binding=require sslmode=disable", environment=ALONE)


def test_the_users_own_certificate_is_used_as_libpq_uses_it(tmp_path: Path) -> None:
    folder = tmp_path / ".postgresql"
    folder.mkdir()
    for name in ("postgresql.crt", "postgresql.key", "root.crt"):
        (folder / name).write_text("x")
    environment = {"HOME": str(tmp_path)}
    address = find_server("host=h sslmode=require", environment=environment).address
    assert (address.ssl_mode, address.ssl_ca, address.ssl_cert) == (
        "VERIFY_CA", f"{folder}/root.crt", f"{folder}/postgresql.crt"
    )  # fmt: skip
    assert find_server("host=h sslmode=require sslcertmode=disable", environment=environment).address.ssl_cert is None


# ---------------------------------------------------------------- numeric addresses


def test_addresses_stand_for_themselves() -> None:
    """[load-4]"""
    assert resolve_host(ServerAddress(host="::1")) == ("::1",)
    (zone,) = resolve_host(ServerAddress(host="fe80::1%lo"))
    assert zone == "fe80::1%1", "the kernel takes the number of the interface"
    with pytest.raises(UsageError, match="interface"):
        resolve_host(ServerAddress(host="fe80::1%nowhere"))
    assert numeric_target(ServerAddress(socket="/s"), lambda _: None) == UnixTarget(path="/s")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("127.0.0.1:3306", TcpTarget(host="127.0.0.1", port=3306)),
        ("[::1]:5432", TcpTarget(host="::1", port=5432)),
        ("/run/x.sock", UnixTarget(path="/run/x.sock")),
        ("mysql://u:x@127.0.0.1/d", TcpTarget(host="127.0.0.1", port=3306)),
        ("postgresql://u@127.0.0.1/d", TcpTarget(host="127.0.0.1", port=5432)),
        ("u:x@tcp(127.0.0.1:3307)/d", TcpTarget(host="127.0.0.1", port=3307)),
        ("redis://127.0.0.1", TcpTarget(host="127.0.0.1", port=6379)),
    ],
)
def test_record_and_slope_take_any_form(text: str, target: object) -> None:
    assert server_at(text) == target


def test_what_the_server_decides_is_decided_before_a_load() -> None:
    target = TcpTarget(host="127.0.0.1", port=1)
    assert resolve_tls_mode(ServerAddress(ssl_mode="REQUIRED"), target, lambda _: None).ssl_mode == "REQUIRED"
    with pytest.raises(UsageError, match="leaves open"):
        resolve_tls_mode(ServerAddress(protocol="mysql", ssl_mode="PREFERRED"), target, lambda _: None)
    socket = resolve_tls_mode(
        ServerAddress(protocol="postgresql", ssl_mode="PREFERRED"), UnixTarget(path="/s"), lambda _: None
    )
    assert socket.ssl_mode == "DISABLED"


# ---------------------------------------------------------------- no message shows a password

COMMANDS = [
    ["load", "{}", "oltp_point_select"], ["load", "oltp_point_select", "{}"], ["doctor", "{}"],
    ["record", "--server", "{}", "--", "true"], ["slope", "--server", "{}", "--", "true"],
    ["lab", "--server", "{}", "--", "true"], ["run", "paths", "--server", "{}"],
    ["replay", "x.recording", "--statements", "x", "--dsn", "{}"],
]  # fmt: skip
ROWS = [
    "root:secret@tcp(127.0.0.1:1)/shop", "root:secret@127.0.0.1/shop", "mysql//u:secret@127.0.0.1",
    "host=127.0.0.1 port=1 password=secret",
    "Server=127.0.0.1;Port=1;Pwd=secret;Uid=u", "-psecret", "jdbc:mysql://127.0.0.1:1/db?user=u&password=secret",
    "u:secret@127.0.0.1:1", "mysql://u:secret@127.0.0.1:1", "mysql://u@127.0.0.1:1/db?password=secret",
    "mysql://u:sec/ret@127.0.0.1:1/db", "--mysql-password=secret", "postgresql+psycopg://u:secret@127.0.0.1:1/db",
    "redis://:secret@127.0.0.1:1",
]  # fmt: skip


@pytest.mark.parametrize("text", ROWS)
@pytest.mark.parametrize("command", COMMANDS[:6], ids=lambda words: words[0])
def test_no_command_repeats_a_password(
    command: list[str], text: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[cli-1]"""
    go_nowhere(monkeypatch)
    code = run_command_line([word.format(text) for word in command])
    shown = "".join(capfd.readouterr())
    assert "secret" not in shown and "sec/ret" not in shown and "ret@" not in shown
    assert code != 70 and "Traceback" not in shown


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    command=st.sampled_from(COMMANDS),
    form=st.sampled_from(FORMS),
    around=st.text(st.sampled_from("/?#@:%&=;' a1"), max_size=5),
)
def test_no_command_repeats_a_planted_secret(
    command: list[str], form: str, around: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[cli-1]"""
    go_nowhere(monkeypatch)
    text = form.format(f"{PLANTED}{around}{PLANTED}")
    code = run_command_line([word.format(text) for word in command])
    shown = "".join(capfd.readouterr())
    assert PLANTED not in shown and code != 70


def go_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop each command where it would look for the server."""

    def stop(address: ServerAddress, _: object) -> None:
        raise UsageError(f"stopped before {address.location}", f"{address!r}")

    for module in ("target", "load", "doctor"):
        monkeypatch.setattr(f"howfar.cli.{module}.numeric_target", stop)


def test_a_suggestion_is_one_that_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """[cli-2]"""
    for option in ("--mysql-passwd=secret", "--mysql-pass=secret", "--pwd=secret", "--password=secret"):
        assert run_command_line(["load", option, "oltp_read_only"]) == 2
        shown = capsys.readouterr().err
        assert "--password-file" in shown and "secret" not in shown and "--mysql-password?" not in shown


# ---------------------------------------------------------------- nor does `ps`


@pytest.mark.parametrize("form", FORMS)
def test_an_argument_that_may_hold_a_password_is_known_as_such(form: str) -> None:
    assert may_hold_password(form.format(PLANTED), "load")


@pytest.mark.parametrize(
    ("argument", "before", "hides"),
    [
        ("oltp_read_only", "load", False), ("--threads=2", "x", False), ("127.0.0.1:3306", "--server", False),
        ("/run/mysqld/mysqld.sock", "", False), ("--password-file", "", False), ("db.internal", "", False),
        ("secret", "--password", True), ("secret", "-p", True), ("secret", "--mysql-password", True),
        ("--mysql-password=secret", "", True), ("-psecret", "", True), ("mysql://u@h", "", True), ("a b", "", True),
    ],
)  # fmt: skip
def test_plain_arguments_stay_readable(argument: str, before: str, hides: bool) -> None:
    assert may_hold_password(argument, before) is hides


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_real_process_does_not_show_its_password(tmp_path: Path) -> None:
    """Read from /proc while the process waits for a file, after its arguments were overwritten."""
    source = (
        "import sys, time; from howfar.cli.hide_arguments import HIDING, hide_passwords; hide_passwords(); "
        "print(HIDING.is_done, sys.argv[2], flush=True); sys.stdin.read()"
    )
    secrets = [
        "mysql://u:hunter22@h/d",
        "u:hunter22@tcp(h)/d",
        "host=h password=hunter22",
        "-phunter22",
        "jdbc:mysql://h/d?password=hunter22",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", source, "load", *secrets, "--password", "hunter22", "oltp_read_only", ""],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == f"True {secrets[0]}\n"
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert b"hunter22" not in b"".join(shown)
        assert shown[3:4] == [b"load"] and shown[-3:] == [b"oltp_read_only", b"", b""]
        assert [len(word) for word in shown[4:9]] == [len(word) for word in secrets]
        assert (
            "hunter22"
            not in subprocess.run(["ps", "-o", "args=", "-p", str(process.pid)], capture_output=True, text=True).stdout
        )
    finally:
        process.communicate("")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_the_command_hides_its_password_before_it_does_anything(tmp_path: Path) -> None:
    """The complete program, waiting for an engine that does not answer; neither it nor what it starts shows the password."""
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\necho started > ready\nexec sleep 30\n")
    engine.chmod(0o755)
    source = "import sys; from howfar.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", source, "load", "mysql://u:hunter22@127.0.0.1:1/d", "oltp_read_only"],
        cwd=tmp_path, env={**os.environ, "HOWFAR_ENGINE": str(engine)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "ready").exists()
        assert b"hunter22" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            assert b"hunter22" not in Path(f"/proc/{child}/cmdline").read_bytes()
    finally:
        process.terminate()
        process.communicate()
