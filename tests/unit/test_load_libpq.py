"""libpq's words mean what they mean to libpq, and never repeat a password."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from howfar.cli.load_address import find_login
from howfar.errors import UsageError
from howfar.load.cmdline import parse_command_line
from howfar.load.job import load_job, workload_of
from howfar.load.libpq import SOCKETS, SYSTEM_CA, completed, parse_services, parse_uri, password_of
from howfar.load.target import ServerAddress


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://u@h:5433/d", {"user": "u", "host": "h", "port": 5433, "database": "d"}),
        ("postgres://h", {"host": "h"}),
        ("postgresql:///d?host=/run/pg&user=u", {"host": "/run/pg", "user": "u", "database": "d"}),
        ("postgresql://u@%2FRun%2Fpg/d", {"host": "/Run/pg", "user": "u", "database": "d"}),
        ("postgresql://[::1]:1/d", {"host": "::1", "port": 1, "database": "d"}),
        ("postgresql://h?sslmode=verify-ca&sslrootcert=c", {"host": "h", "ssl_mode": "VERIFY_CA", "ssl_ca": "c"}),
        ("postgresql://h?sslmode=require&sslnegotiation=direct", {"host": "h", "ssl_mode": "REQUIRED", "tls_direct": True}),
        ("postgresql://?service=s", {"service": "s"}),
        ("postgresql://h?application_name=x&connect_timeout=3", {"host": "h"}),
    ],
)  # fmt: skip
def test_what_a_uri_says(text: str, expected: dict[str, Any]) -> None:
    assert parse_uri(text) == ServerAddress(protocol="postgresql", **expected)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("postgresql://h?sslmode=allow", "leaves open"),
        ("postgresql://h?sslmode=REQUIRED", "known modes"),
        ("postgresql://h?ssl_mode=require", "unknown parameter ssl_mode"),
        ("postgresql://a,b/d", "only one server"),
        ("postgresql://u@h?user=v", "user twice"),
        ("postgresql://h:99999", "cannot be read"),
    ],
)
def test_what_a_uri_cannot_say(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_uri(text)


@pytest.mark.parametrize("text", ["postgresql://u:hunter22@h/d", "postgresql://h/d?password=hunter22"])
def test_a_password_in_a_uri_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_uri(text)
    assert "hunter22" not in f"{refused.value.message}{refused.value.advice}"


def _completed(text: str, root_cert: str | None = None) -> ServerAddress:
    return completed(parse_uri(text), "me", root_cert)


def test_defaults_are_those_of_libpq() -> None:
    bare = _completed("postgresql://")
    assert (bare.socket, bare.user, bare.database) == (f"{SOCKETS}/.s.PGSQL.5432", "me", "me")
    named = _completed("postgresql://u@h")
    assert (named.host, named.port, named.database) == ("h", 5432, "u")
    assert _completed("postgresql:///?host=/run/pg/&port=7").socket == "/run/pg/.s.PGSQL.7"
    assert _completed("postgresql://?hostaddr=::1").host == "::1"


def test_certificates_are_found_as_libpq_finds_them() -> None:
    assert _completed("postgresql://h?sslmode=require&sslrootcert=c").ssl_mode == "VERIFY_CA"
    assert _completed("postgresql://h?sslmode=verify-full", "own").ssl_ca == "own"
    system = _completed("postgresql://h?sslrootcert=system")
    assert (system.ssl_ca, system.ssl_mode) == (SYSTEM_CA, "VERIFY_IDENTITY")
    with pytest.raises(UsageError, match="needs the CA"):
        _completed("postgresql://h?sslmode=verify-ca")
    with pytest.raises(UsageError, match="direct"):
        _completed("postgresql://h?sslnegotiation=direct")


SERVICES = "# mine\n[one]\nhost=h\nport=7\n[two]\ndbname = d\npassword=secret\n"


def test_a_service_is_one_group_of_its_file() -> None:
    assert parse_services("f", SERVICES, "one") == (ServerAddress(protocol="postgresql", host="h", port=7), None)
    assert parse_services("f", SERVICES, "two") == (ServerAddress(protocol="postgresql", database="d"), "secret")
    assert parse_services("f", SERVICES, "three") is None


def test_the_first_fitting_line_has_the_password() -> None:
    text = "# h:5432:d:u:no\nother:*:*:*:no\nh:5432:d:u:a\\:b\\\\c\n*:*:*:*:any\n/run/pg:7:*:*:by socket\nlocalhost:*:*:*:x\n"
    assert password_of(text, _completed("postgresql://u@h/d")) == "a:b\\c"
    assert password_of(text, _completed("postgresql://u@h2/d")) == "any"
    by_socket = "/run/pg:7:*:*:by socket\nlocalhost:*:*:*:by default\n"
    assert password_of(by_socket, _completed("postgresql://?host=/run/pg&port=7")) == "by socket"
    assert password_of(by_socket, _completed("postgresql://")) == "by default"
    assert password_of(by_socket, _completed("postgresql://h")) is None


def test_sources_are_joined_in_the_order_of_libpq(tmp_path: Path) -> None:
    (tmp_path / ".pg_service.conf").write_text("[s]\nuser=of_service\ndbname=of_service\n")
    passfile = tmp_path / ".pgpass"
    passfile.write_text("127.0.0.1:7:of_service:of_uri:secret\n")
    passfile.chmod(0o600)
    environment = {"HOME": str(tmp_path), "PGPORT": "7", "PGUSER": "of_env", "PGHOST": "/nowhere"}
    options = parse_command_line(["postgresql://of_uri@127.0.0.1?service=s", "tpcb-like", "--scale=3", "--pipeline=7"])
    login = find_login(options, lambda _: None, environment)
    job = load_job(options, login, workload_of(options, None), 1)
    assert (job.protocol, job.user, job.database, job.password) == ("postgresql", "of_uri", "of_service", "secret")
    assert job.target.model_dump() == {"kind": "tcp", "host": "127.0.0.1", "port": 7}
    assert job.workload.model_dump() == {"kind": "tpcb_like", "scale": 3, "db_ps_mode": "auto"}
    assert (job.session.pipeline, job.session.tls) == (7, None)
    passfile.chmod(0o644)
    assert find_login(options, lambda _: None, environment).password == ""
    with pytest.raises(UsageError, match="no service file"):
        find_login(options, lambda _: None, environment | {"PGSERVICEFILE": "/none", "HOME": "/none"})


def test_sysbenchs_own_options_name_a_server_too() -> None:
    arguments = ["oltp_read_only", "--db-driver=pgsql", "--pgsql-host=/run/pg", "--pgsql-sslmode=disable"]
    options = parse_command_line(arguments)
    login = find_login(options, lambda _: None, {"HOME": "/none"})
    job = load_job(options, login, workload_of(options, None), 1)
    assert (job.protocol, job.user, job.database) == ("postgresql", "sbtest", "sbtest")
    assert job.target.model_dump() == {"kind": "unix", "path": "/run/pg/.s.PGSQL.5432"}
