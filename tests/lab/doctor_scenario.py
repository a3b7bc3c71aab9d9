"""Many servers at once in their own namespaces, set up wrongly and correctly; examined, changed as proposed, and examined again.

    unshare --net --pid --mount --fork --mount-proc --kill-child python -m tests.lab.doctor_scenario CASE...

Prints JSON: for each case, by name, what both examinations found of its server. All processes die with the PID namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pymysql

from howfar.errors import HowfarError
from howfar.lab.certificates import make_certificates
from howfar.lab.servers.kinds import DIALECTS, find_server
from tests.lab.doctor_cases import CASES, FORWARDERS, Case, User
from tests.lab.doctor_proposed import Proposed

LOOKS = 3
WATCH_S = 2.0
_TIMEOUT_S = 90.0
_PROGRAMS = {"redis": "redis-server", "memcached": "memcached"}


def _until(condition: Callable[[], bool], what: str, log: Path | None = None) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        output = log.read_text(errors="replace")[-800:] if log is not None else ""
        assert time.monotonic() < deadline, f"waited {_TIMEOUT_S:.0f} s for: {what}: {output}"
        time.sleep(0.01)


class Ward:
    """One case: its server, its client, and what was changed."""

    def __init__(
        self, case: Case, number: int, where: Path, templates: Mapping[str, Path], certificates: Mapping[str, str]
    ) -> None:
        """Ports are below those that the kernel gives to clients; no other programs are in this network namespace."""
        base = where / str(number)
        self.case, self.base = case, base
        self.placeholders = {
            "base": str(base),
            "port": str(20000 + 2 * number),
            "tls": str(20001 + 2 * number),
            **certificates,
        }
        self.options = [option.format(**self.placeholders) for option in case.options]
        self.proposed = Proposed()
        self.processes: list[subprocess.Popen[bytes]] = []
        (base / "closed").mkdir(parents=True)
        shutil.chown(base, case.account)
        shutil.chown(base / "closed", case.account)
        base.chmod(0o755)
        (base / "closed").chmod(0o700)
        if case.server in templates:
            subprocess.run(["cp", "-a", "--sparse=always", templates[case.server], base / "data"], check=True)

    def start_server(self) -> None:
        self.server = self._spawn(*self._command(self.options), account=self.case.account)
        self._until_up(self.server)
        if self.case.second and not self.proposed.server:
            options = [option.replace(self.placeholders["port"], self.placeholders["tls"]) for option in self.options]
            self._until_up(self._spawn(*self._command(options), account=self.case.account))
        if self.case.removed and not self.proposed.server:
            Path(self.case.removed.format(**self.placeholders)).unlink()
        if self.case.sql and not self.proposed.server:
            self._run_sql(self.case.sql)

    def _spawn(self, *command: str, account: str = "root") -> subprocess.Popen[bytes]:
        with (self.base / "log").open("ab") as log:
            made = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=account, group=account_group(account), extra_groups=[]
            )  # fmt: skip
        self.processes.append(made)
        return made

    def _command(self, options: Sequence[str]) -> list[str]:
        if self.case.server == "memcached":
            who = ["-u", "root"] if self.case.account == "root" else []
            return ["memcached", *who, *(word for option in options for word in option.split(" ", 1))]
        if self.case.server == "redis":
            file = self.base / f"redis-{len(self.processes)}.conf"
            file.write_text("\n".join(options) + "\n")
            file.chmod(0o644)
            return ["redis-server", str(file)]
        if self.case.server == "postgresql":
            (self.base / "hba.conf").write_text(self._hba())
            file = self.base / "postgresql.conf"
            file.write_text("\n".join([*options, f"hba_file = '{self.base}/hba.conf'"]) + "\n")
            program = find_server("postgresql").path
            if self.case.program:
                program = self.base / self.case.program
                program.unlink(missing_ok=True)
                program.symlink_to(find_server("postgresql").path)
            return [str(program), "-D", f"{self.base}/data", "-c", f"config_file={file}"]
        file = self.base / "my.cnf"
        file.write_text("\n".join(["[mysqld]", f"datadir = {self.base}/data", "user = root", *options]) + "\n")
        return [str(find_server(self.case.server).path), f"--defaults-file={file}"]

    def _hba(self) -> str:
        """The rules for logins with the proposed lines, as a user would copy them."""
        lines = self.case.hba.splitlines()
        first = next(at for at, line in enumerate(lines) if line.startswith("local"))
        return "\n".join([*lines[:first], *map(self._filled, self.proposed.hba), *lines[first:]]) + "\n"

    def _filled(self, line: str) -> str:
        """A proposed line with the values that its reader knows."""
        login = self.case.user.login if self.case.user is not None else ""
        user, _, password = (login or "root:").partition(":")
        database = "postgres" if self.case.server == "postgresql" else "test"
        values = {"USER": user, "PASSWORD": password, "METHOD": "scram-sha-256", "DB": database}
        if line.startswith(("local ", "DB ")):
            return " ".join(values.get(word, word) for word in line.split())
        return (
            line.replace("'USER'", f"'{user}'").replace("'PASSWORD'", f"'{password}'").replace(" DB.", f" {database}.")
        )

    def accept_clients(self) -> None:
        """Change what the server accepts, as proposed."""
        if self.proposed.hba:
            (self.base / "hba.conf").write_text(self._hba())
            self.server.send_signal(signal.SIGHUP)
        self._run_sql([self._filled(line) for line in self.proposed.sql])
        for line in self.proposed.after_restart:
            subprocess.run(["sh", "-ec", line], check=True)

    def _run_sql(self, statements: Sequence[str]) -> None:
        if statements:
            with pymysql.connect(unix_socket=self.socket(), user="root") as connection, connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

    def _until_up(self, server: subprocess.Popen[bytes]) -> None:
        log = self.base / "log"

        def up() -> bool:
            assert server.poll() is None, f"{self.case.name}: ended: {log.read_text()[-800:]}"
            listening = {fields[3] for fields in _tcp() if fields[3] == "0A"} and _inodes(server.pid)
            return bool(listening) and self._responds()

        _until(up, self.case.name, log)

    def _responds(self) -> bool:
        """Whether it responds on the socket that it should have, else on its port; PostgreSQL reports its readiness itself."""
        path = self.socket()
        if self.case.server in DIALECTS:
            place: dict[str, Any] = (
                {"unix_socket": path} if path else {"host": "127.0.0.1", "port": int(self.placeholders["port"])}
            )
            with contextlib.suppress(pymysql.err.MySQLError):
                pymysql.connect(user="root", ssl_disabled=True, **place).close()
                return True
            return False
        if self.case.server == "postgresql":
            # It listens, and refuses clients, before it is ready. pg_ctl reads this file, too.
            with contextlib.suppress(FileNotFoundError):
                return "ready" in (self.base / "data/postmaster.pid").read_text().split()
            return False
        return (
            Path(path).exists()
            if path
            else self.placeholders["port"] in {str(int(fields[1].rpartition(":")[2], 16)) for fields in _tcp()}
        )

    def socket(self) -> str:
        """The last socket that its options name."""
        found = ""
        for option in self.options:
            name, _, value = option.replace("=", " ", 1).partition(" ")
            if name == "unix_socket_directories":
                folder = value.strip(" '")
                found = f"{folder}/.s.PGSQL.{self.placeholders['port']}" if folder else ""
            if name in ("socket", "unixsocket", "-s"):
                found = value.strip()
        return found

    def start_client(self) -> None:
        user = self.case.user
        self.clients: list[subprocess.Popen[bytes]] = []
        if user is None:
            return
        mode = self.proposed.mode or user.mode
        path = self.proposed.path
        if user.transport.startswith("cli"):
            self._start_cli(compressed=user.transport == "cli-compress")
            return
        where = f"unix:{path or self.socket()}" if path or user.transport == "unix" else self._address(user)
        if user.transport in FORWARDERS:
            self._start_forwarder(user)
            where = f"{'tls' if user.transport == 'stunnel' else 'tcp'}:{self.placeholders['tls']}"
        kind = "mysql" if self.case.server in DIALECTS else self.case.server
        self.report = self.base / f"report-{len(self.processes)}"
        self.clients.append(
            self._spawn(
                sys.executable,
                "-m",
                "tests.lab.doctor_client",
                kind,
                where,
                mode,
                user.account,
                str(self.report),
                user.name,
                user.login,
            )
        )
        _until(
            lambda: self.report.exists() and self.report.read_text() != "",
            f"{self.case.name}: the client",
            self.base / "log",
        )

    def _start_forwarder(self, user: User) -> None:
        """Start a forwarder on the port `tls`, to the server's port or as proposed."""
        listen, port, line = self.placeholders["tls"], self.placeholders["port"], self._filled(self.proposed.forwarder)
        file = self.base / f"{user.transport}.cfg"
        (self.base / "chroot").mkdir(exist_ok=True)
        (self.base / "users").write_text('"app" "secret"\n')
        end = (
            line
            or {
                "socat": f"TCP:127.0.0.1:{port}",
                "haproxy": f"server db 127.0.0.1:{port}",
                "pgbouncer": f"postgres = host=127.0.0.1 port={port}",
                "stunnel": f"connect = 127.0.0.1:{port}",
            }[user.transport]
        )
        file.write_text(
            {
                "socat": "",
                "haproxy": f"global\n chroot {self.base}/chroot\n user haproxy\n group haproxy\ndefaults\n mode tcp\n"
                " timeout connect 5s\n timeout client 50s\n timeout server 50s\n"
                f"listen mysql\n bind 127.0.0.1:{listen}\n {end}\n",
                "pgbouncer": f"[databases]\n{end}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {listen}\n"
                f"unix_socket_dir =\nauth_type = plain\nauth_file = {self.base}/users\n",
                "stunnel": f"foreground = yes\npid =\n[{self.case.server}]\naccept = 127.0.0.1:{listen}\n{end}\n"
                f"cert = {self.placeholders['certificate']}\nkey = {self.placeholders['key']}\n",
            }[user.transport]
        )
        command = {
            "socat": ["socat", f"TCP-LISTEN:{listen},fork,reuseaddr,bind=127.0.0.1", end],
            "haproxy": ["haproxy", "-db", "-f", str(file)],
            "pgbouncer": ["pgbouncer", str(file)],
            "stunnel": ["stunnel", str(file)],
        }[user.transport]
        account = "www-data" if user.transport == "pgbouncer" else "root"
        forwarding = self._spawn(*command, account=account)
        self.clients.append(forwarding)

        def listens() -> bool:
            assert forwarding.poll() is None, f"{user.transport} ended: {(self.base / 'log').read_text()[-800:]}"
            return int(listen) in {int(fields[1].rpartition(":")[2], 16) for fields in _tcp()}

        _until(listens, user.transport)

    def _address(self, user: User) -> str:
        """The client's transport and port; Redis has a separate port for TLS."""
        return f"{user.transport}:{self.placeholders['tls' if user.transport == 'tls' and self.case.server == 'redis' else 'port']}"

    def _start_cli(self, compressed: bool) -> None:
        file = self.base / "client.cnf"
        file.write_text("\n".join(["[client]", "compress" if compressed else "ssl"]) + "\n")
        self.clients.append(
            self._spawn(
                "mariadb",
                f"--defaults-file={file}",
                *self.proposed.client_options,
                "-S",
                self.socket(),
                "-u",
                "root",
                "-e",
                "SELECT SLEEP(1000)",
            )
        )
        with pymysql.connect(unix_socket=self.socket(), user="root", ssl_disabled=True, autocommit=True) as connection:

            def asks() -> bool:
                with connection.cursor() as cursor:
                    cursor.execute("SHOW PROCESSLIST")
                    return any("SLEEP" in str(row[7]) for row in cursor.fetchall())

            _until(asks, f"{self.case.name}: the command", self.base / "log")

    def stop_clients(self) -> None:
        for client in self.clients:
            client.kill()
            client.wait()

    def stop_server(self) -> None:
        """Stop the server cleanly, so that its data can be opened again."""
        self.server.terminate()
        self.server.wait(_TIMEOUT_S)

    def figures(self) -> list[int]:
        """Connects and CPU time of the client until now."""
        if self.case.user is None or self.case.user.transport.startswith("cli"):
            return []
        fields: list[str] = []

        def whole() -> bool:
            fields[:] = self.report.read_text().split()  # empty while it is being rewritten
            return len(fields) == 2

        _until(whole, self.case.name, self.report)
        return [int(word) for word in fields]


def account_group(account: str) -> int:
    return pwd.getpwnam(account).pw_gid


def _tcp() -> list[list[str]]:
    return [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]


def _target(descriptor: Path) -> str:
    """What a descriptor refers to; empty if it was closed meanwhile."""
    try:
        return str(descriptor.readlink())
    except FileNotFoundError:
        return ""


def _inodes(pid: int) -> bool:
    return any("socket:" in _target(entry) for entry in Path(f"/proc/{pid}/fd").iterdir())


_COMMAND = "import sys; from howfar.cli.main import run_command_line; sys.exit(run_command_line())"
_AS_NOBODY = """
import encodings.idna, os, sys
import howfar.cli.doctor, howfar.doctor.examine
from howfar.cli.main import run_command_line
os.setgroups([]); os.setgid(65534); os.setuid(65534); os.chdir("/")
sys.exit(run_command_line())
"""
"""Loads everything first: howfar may be in a directory that the account `nobody` may not read."""


def _look(as_nobody: bool = False) -> dict[str, Any]:
    arguments = ["doctor", "--json", "--watch", str(WATCH_S), *(("--user", "root") if as_nobody else ())]
    done = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY if as_nobody else _COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HOWFAR_DEBUG": "1"},
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _seen(sample: Mapping[str, Any], ward: Ward) -> dict[str, Any]:
    return next((server for server in sample["servers"] if server["pid"] == ward.server.pid), {})


def _own_machine(base: Path) -> None:
    """Set up the loopback, an empty /run, and an /etc whose accounts may be changed."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
    # Temporary tables are named after the PID, which servers of other PID namespaces may have too.
    (base / "tmp").mkdir()
    (base / "tmp").chmod(0o1777)
    os.environ["TMPDIR"] = str(base / "tmp")
    (base / "etc").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(base / "etc")], check=True)
    subprocess.run(["cp", "-a", "/etc/.", str(base / "etc")], check=True)
    subprocess.run(["mount", "--bind", str(base / "etc"), "/etc"], check=True)


def _present(server: str) -> str:
    """Why a server is not available; empty if it is."""
    if server in _PROGRAMS:
        return (
            ""
            if shutil.which(_PROGRAMS[server])
            else f"{_PROGRAMS[server]} is not installed (./setup --tests brings it)"
        )
    try:
        find_server(server)
    except HowfarError as error:
        return f"{error.message} {error.advice}"
    return ""


def _measured(wards: Sequence[Ward]) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Examine once; also returns each client's connects and CPU time meanwhile."""
    before = {ward.case.name: ward.figures() for ward in wards}
    sample = _look()
    after = {ward.case.name: ward.figures() for ward in wards}
    return sample, {name: [b - a for a, b in zip(before[name], after[name], strict=True)] for name in before}


def _found(wards: Sequence[Ward]) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Examine until nothing is missed: on a busy machine, a short examination may miss what a client does only now and then."""
    for _ in range(LOOKS):
        sample, did = _measured(wards)
        if all(ward.case.finds <= _changes(_seen(sample, ward)) for ward in wards):
            break
    return sample, did


def _changes(server: Mapping[str, Any]) -> set[str]:
    return {finding["check"] for finding in server.get("findings", ()) if finding["severity"] == "change"}


def main() -> None:
    base = Path(tempfile.mkdtemp(prefix="hfd", dir="/tmp"))
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "none", str(base)], check=True)
        _own_machine(base)
        absent = {server: why for server in ("mariadb", "mysql", "postgresql", *_PROGRAMS) if (why := _present(server))}
        templates, certificates = _made(base, absent)
        cases = [case for case in CASES if case.server not in absent and case.name in sys.argv[1:]]
        wards = [Ward(case, number, base, templates, certificates) for number, case in enumerate(cases)]
        for ward in wards:
            ward.start_server()
        for ward in wards:
            ward.start_client()
        first, did_first = _found(wards)
        by_nobody = _look(as_nobody=True)
        of_first = {ward.case.name: _seen(first, ward) for ward in wards}
        known = {process.pid for ward in wards for process in ward.processes}
        _change(wards, of_first)
        second, did_second = _measured(wards)
        answer = {
            "absent": absent,
            "first": of_first,
            "second": {ward.case.name: _seen(second, ward) for ward in wards},
            "did_first": did_first,
            "did_second": did_second,
            "by_nobody": {ward.case.name: _seen(by_nobody, ward) for ward in wards},
            "unseen_by_nobody": by_nobody["unseen"],
            "strangers": [server for server in first["servers"] if server["pid"] not in known],
            "lines": {ward.case.name: ward.proposed.all_lines for ward in wards},
        }
        print(json.dumps(answer))
    finally:
        subprocess.run(["umount", "-l", "/etc", str(base / "etc"), str(base)], stderr=subprocess.DEVNULL)
        shutil.rmtree(base, ignore_errors=True)


def _made(base: Path, absent: Mapping[str, str]) -> tuple[dict[str, Path], dict[str, str]]:
    """Data directories to copy, and certificates."""
    templates = {kind: base / kind for kind in DIALECTS if kind not in absent}
    for kind, where in templates.items():
        DIALECTS[kind].initialise(find_server(kind).path, where)
        DIALECTS[kind].adopt(where)
    if "postgresql" not in absent:
        templates["postgresql"] = base / "postgresql"
        _initialise_postgresql(find_server("postgresql").path, templates["postgresql"])
    tls = make_certificates(base, ["127.0.0.1"])
    return templates, {"certificate": str(tls.certificate), "key": str(tls.key), "ca": str(tls.ca)}


def _initialise_postgresql(program: Path, where: Path) -> None:
    """Initialise a data directory as its package does, with a role for clients; PostgreSQL refuses to run as root."""
    where.mkdir(mode=0o700)
    shutil.chown(where, "postgres", "postgres")
    account: dict[str, Any] = {
        "user": "postgres",
        "group": account_group("postgres"),
        "extra_groups": [],
        "check": True,
    }
    account |= {"cwd": "/", "stdout": subprocess.DEVNULL}
    subprocess.run([program.parent / "initdb", "--no-sync", "--auth=trust", "-D", where], **account)
    single = [str(program), "--single", "-D", str(where), "postgres"]
    subprocess.run(single, input=b"CREATE ROLE app LOGIN PASSWORD 'secret'\n", **account)


def _change(wards: Sequence[Ward], looks: Mapping[str, Any]) -> None:
    """Change each setup as proposed, and nothing else."""
    for ward in wards:
        ward.proposed = Proposed.of(looks[ward.case.name].get("findings", []))
        ward.stop_clients()
        if ward.proposed.server:
            ward.stop_server()
            ward.options = ward.proposed.applied(ward.options)
            ward.start_server()
        ward.accept_clients()
        ward.start_client()


if __name__ == "__main__":
    main()
