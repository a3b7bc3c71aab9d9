"""Many servers in their own namespaces, with wrong and correct setups: examined, changed as proposed, and examined again.

    unshare --net --pid --mount --fork --mount-proc --kill-child python -m tests.lab.doctor_scenario CASE...

Prints JSON: by case, what both examinations found of its server. All processes end with the PID namespace.
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
from tests.lab.doctor_proposals import Proposals
from tests.lab.howfar_runs import PYTHON_HOWFAR

MAX_EXAMINATIONS = 3
WATCH_S = 2.0
_TIMEOUT_S = 90.0
_PROGRAMS = {"redis": "redis-server", "memcached": "memcached"}


def _wait_until(condition: Callable[[], bool], description: str, log: Path | None = None) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        output = log.read_text(errors="replace")[-800:] if log is not None else ""
        assert time.monotonic() < deadline, f"waited {_TIMEOUT_S:.0f} s for: {description}: {output}"
        time.sleep(0.01)


class RunningCase:
    """A case with its server, its client and the changes that were proposed."""

    def __init__(
        self, case: Case, number: int, parent: Path, templates: Mapping[str, Path], certificates: Mapping[str, str]
    ) -> None:
        """Ports are below those that the kernel gives to clients, and this network namespace has no other programs."""
        base = parent / str(number)
        self.case, self.base, self.log = case, base, base / "log"
        self.placeholders = {
            "base": str(base),
            "port": str(20000 + 2 * number),
            "tls": str(20001 + 2 * number),
            **certificates,
        }
        self.options = [option.format(**self.placeholders) for option in case.options]
        self.proposed = Proposals()
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
        self._wait_until_up(self.server)
        if self.case.second and not self.proposed.server:
            options = [option.replace(self.placeholders["port"], self.placeholders["tls"]) for option in self.options]
            self._wait_until_up(self._spawn(*self._command(options), account=self.case.account))
        if self.case.removed and not self.proposed.server:
            Path(self.case.removed.format(**self.placeholders)).unlink()
        if self.case.sql and not self.proposed.server:
            self._run_sql(self.case.sql)

    def _spawn(self, *command: str, account: str = "root") -> subprocess.Popen[bytes]:
        group = account_group(account)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=account, group=group, extra_groups=[]
            )
        self.processes.append(process)
        return process

    def _command(self, options: Sequence[str]) -> list[str]:
        if self.case.server == "memcached":
            account = ["-u", "root"] if self.case.account == "root" else []
            return ["memcached", *account, *(word for option in options for word in option.split(" ", 1))]
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
        """The rules for logins, with the proposed lines inserted as a user would."""
        lines = self.case.hba.splitlines()
        first = next(at for at, line in enumerate(lines) if line.startswith("local"))
        return "\n".join([*lines[:first], *map(self._fill, self.proposed.hba), *lines[first:]]) + "\n"

    def _fill(self, line: str) -> str:
        """A proposed line with its placeholders replaced."""
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
        """Apply the proposed changes of logins."""
        if self.proposed.hba:
            (self.base / "hba.conf").write_text(self._hba())
            self.server.send_signal(signal.SIGHUP)
        self._run_sql([self._fill(line) for line in self.proposed.sql])
        for line in self.proposed.after_restart:
            subprocess.run(["sh", "-ec", line], check=True)

    def _run_sql(self, statements: Sequence[str]) -> None:
        if statements:
            with pymysql.connect(unix_socket=self.socket(), user="root") as connection, connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

    def _wait_until_up(self, server: subprocess.Popen[bytes]) -> None:
        def is_up() -> bool:
            assert server.poll() is None, f"{self.case.name}: ended: {self.log.read_text()[-800:]}"
            return any(fields[3] == "0A" for fields in _tcp()) and _has_socket(server.pid) and self._responds()

        _wait_until(is_up, self.case.name, self.log)

    def _responds(self) -> bool:
        """Whether it responds on its socket, or without one on its port; PostgreSQL reports that it is ready in a file."""
        path = self.socket()
        if self.case.server in DIALECTS:
            tcp: dict[str, Any] = {"host": "127.0.0.1", "port": int(self.placeholders["port"])}
            target = {"unix_socket": path} if path else tcp
            with contextlib.suppress(pymysql.err.MySQLError):
                pymysql.connect(user="root", ssl_disabled=True, **target).close()
                return True
            return False
        if self.case.server == "postgresql":
            # It listens before it accepts clients. pg_ctl also reads this file.
            with contextlib.suppress(FileNotFoundError):
                return "ready" in (self.base / "data/postmaster.pid").read_text().split()
            return False
        return Path(path).exists() if path else int(self.placeholders["port"]) in _tcp_ports()

    def socket(self) -> str:
        """The last socket in its options; empty if there is none."""
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
        arguments = (kind, where, mode, user.account, str(self.report), user.name, user.login)
        self.clients.append(self._spawn(sys.executable, "-m", "tests.lab.doctor_client", *arguments))
        started = lambda: self.report.exists() and self.report.read_text() != ""  # noqa: E731
        _wait_until(started, f"{self.case.name}: the client", self.log)

    def _start_forwarder(self, user: User) -> None:
        """Start a forwarder from the port `tls` to the server's port, or as proposed."""
        listen, port, line = self.placeholders["tls"], self.placeholders["port"], self._fill(self.proposed.forwarder)
        file = self.base / f"{user.transport}.cfg"
        (self.base / "chroot").mkdir(exist_ok=True)
        (self.base / "users").write_text('"app" "secret"\n')
        defaults = {
            "socat": f"TCP:127.0.0.1:{port}",
            "haproxy": f"server db 127.0.0.1:{port}",
            "pgbouncer": f"postgres = host=127.0.0.1 port={port}",
            "stunnel": f"connect = 127.0.0.1:{port}",
        }
        upstream = line or defaults[user.transport]
        file.write_text(
            {
                "socat": "",
                "haproxy": f"global\n chroot {self.base}/chroot\n user haproxy\n group haproxy\ndefaults\n mode tcp\n"
                " timeout connect 5s\n timeout client 50s\n timeout server 50s\n"
                f"listen mysql\n bind 127.0.0.1:{listen}\n {upstream}\n",
                "pgbouncer": f"[databases]\n{upstream}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {listen}\n"
                f"unix_socket_dir =\nauth_type = plain\nauth_file = {self.base}/users\n",
                "stunnel": f"foreground = yes\npid =\n[{self.case.server}]\naccept = 127.0.0.1:{listen}\n{upstream}\n"
                f"cert = {self.placeholders['certificate']}\nkey = {self.placeholders['key']}\n",
            }[user.transport]
        )
        command = {
            "socat": ["socat", f"TCP-LISTEN:{listen},fork,reuseaddr,bind=127.0.0.1", upstream],
            "haproxy": ["haproxy", "-db", "-f", str(file)],
            "pgbouncer": ["pgbouncer", str(file)],
            "stunnel": ["stunnel", str(file)],
        }[user.transport]
        account = "www-data" if user.transport == "pgbouncer" else "root"
        forwarding = self._spawn(*command, account=account)
        self.clients.append(forwarding)

        def listens() -> bool:
            assert forwarding.poll() is None, f"{user.transport} ended: {self.log.read_text()[-800:]}"
            return int(listen) in _tcp_ports()

        _wait_until(listens, user.transport)

    def _address(self, user: User) -> str:
        """The client's transport and port; Redis has a separate port for TLS."""
        return f"{user.transport}:{self.placeholders['tls' if user.transport == 'tls' and self.case.server == 'redis' else 'port']}"

    def _start_cli(self, compressed: bool) -> None:
        file = self.base / "client.cnf"
        file.write_text("\n".join(["[client]", "compress" if compressed else "ssl"]) + "\n")
        options = [f"--defaults-file={file}", *self.proposed.client_options, "-S", self.socket(), "-u", "root"]
        self.clients.append(self._spawn("mariadb", *options, "-e", "SELECT SLEEP(1000)"))
        with pymysql.connect(unix_socket=self.socket(), user="root", ssl_disabled=True, autocommit=True) as connection:

            def runs_query() -> bool:
                with connection.cursor() as cursor:
                    cursor.execute("SHOW PROCESSLIST")
                    return any("SLEEP" in str(row[7]) for row in cursor.fetchall())

            _wait_until(runs_query, f"{self.case.name}: the command", self.log)

    def stop_clients(self) -> None:
        for client in self.clients:
            client.kill()
            client.wait()

    def stop_server(self) -> None:
        """Stop the server cleanly, so that its data can be opened again."""
        self.server.terminate()
        self.server.wait(_TIMEOUT_S)

    def read_report(self) -> list[int]:
        """The client's connects and CPU time so far; empty if it does not report them."""
        if self.case.user is None or self.case.user.transport.startswith("cli"):
            return []
        fields: list[str] = []

        def is_complete() -> bool:
            fields[:] = self.report.read_text().split()  # empty while it is being rewritten
            return len(fields) == 2

        _wait_until(is_complete, self.case.name, self.report)
        return [int(word) for word in fields]


def account_group(account: str) -> int:
    return pwd.getpwnam(account).pw_gid


def _tcp() -> list[list[str]]:
    """The kernel's table of TCP sockets."""
    return [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]


def _tcp_ports() -> set[int]:
    return {int(fields[1].rpartition(":")[2], 16) for fields in _tcp()}


def _has_socket(pid: int) -> bool:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if "socket:" in str(descriptor.readlink()):
                return True
    return False


_AS_NOBODY = """
import encodings.idna, os, sys
import howfar.cli.doctor, howfar.doctor.examine
from howfar.cli.main import run_command_line
os.setgroups([]); os.setgid(65534); os.setuid(65534); os.chdir("/")
sys.exit(run_command_line())
"""
"""Imports all modules first, because `nobody` may not be able to read howfar's directory."""


def _examine(as_nobody: bool = False) -> dict[str, Any]:
    command = [sys.executable, "-c", _AS_NOBODY] if as_nobody else PYTHON_HOWFAR
    done = subprocess.run(
        [*command, "doctor", "--json", "--watch", str(WATCH_S), *(("--user", "root") if as_nobody else ())],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HOWFAR_DEBUG": "1"},
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _server_in(examination: Mapping[str, Any], running: RunningCase) -> dict[str, Any]:
    return next((server for server in examination["servers"] if server["pid"] == running.server.pid), {})


def _set_up_namespaces(base: Path) -> None:
    """Set up the loopback interface, an empty /run, and an /etc whose accounts may be changed."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
    # Names of temporary tables contain the PID, which is not unique among PID namespaces.
    (base / "tmp").mkdir()
    (base / "tmp").chmod(0o1777)
    os.environ["TMPDIR"] = str(base / "tmp")
    (base / "etc").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(base / "etc")], check=True)
    subprocess.run(["cp", "-a", "/etc/.", str(base / "etc")], check=True)
    subprocess.run(["mount", "--bind", str(base / "etc"), "/etc"], check=True)


def _missing(server: str) -> str:
    """Why a server is not available; empty if it is."""
    if server in _PROGRAMS:
        program = _PROGRAMS[server]
        return "" if shutil.which(program) else f"{program} is not installed (./setup --tests brings it)"
    try:
        find_server(server)
    except HowfarError as error:
        return f"{error.message} {error.advice}"
    return ""


def _examine_with_clients(cases: Sequence[RunningCase]) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Examine once; also returns each client's connects and CPU time during the examination."""
    before = {running.case.name: running.read_report() for running in cases}
    examination = _examine()
    after = {running.case.name: running.read_report() for running in cases}
    return examination, {name: [b - a for a, b in zip(before[name], after[name], strict=True)] for name in before}


def _examine_until_found(cases: Sequence[RunningCase]) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Examine until all expected changes are found: on a busy machine, an examination may miss what a client does rarely."""
    for _ in range(MAX_EXAMINATIONS):
        examination, activity = _examine_with_clients(cases)
        if all(running.case.finds <= _changes(_server_in(examination, running)) for running in cases):
            break
    return examination, activity


def _changes(server: Mapping[str, Any]) -> set[str]:
    return {finding["check"] for finding in server.get("findings", ()) if finding["severity"] == "change"}


def main() -> None:
    base = Path(tempfile.mkdtemp(prefix="hfd", dir="/tmp"))
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "none", str(base)], check=True)
        _set_up_namespaces(base)
        absent = {kind: reason for kind in ("mariadb", "mysql", "postgresql", *_PROGRAMS) if (reason := _missing(kind))}
        templates, certificates = _make_templates(base, absent)
        selected = [case for case in CASES if case.server not in absent and case.name in sys.argv[1:]]
        cases = [RunningCase(case, number, base, templates, certificates) for number, case in enumerate(selected)]
        for running in cases:
            running.start_server()
        for running in cases:
            running.start_client()
        first, activity_first = _examine_until_found(cases)
        by_nobody = _examine(as_nobody=True)

        def servers_in(examination: Mapping[str, Any]) -> dict[str, Any]:
            return {running.case.name: _server_in(examination, running) for running in cases}

        servers_first = servers_in(first)
        pids = {process.pid for running in cases for process in running.processes}
        _apply_proposals(cases, servers_first)
        second, activity_second = _examine_with_clients(cases)
        result = {
            "absent": absent,
            "first": servers_first,
            "second": servers_in(second),
            "activity_first": activity_first,
            "activity_second": activity_second,
            "by_nobody": servers_in(by_nobody),
            "unseen_by_nobody": by_nobody["unseen"],
            "unknown_servers": [server for server in first["servers"] if server["pid"] not in pids],
            "lines": {running.case.name: running.proposed.all_lines for running in cases},
        }
        print(json.dumps(result))
    finally:
        subprocess.run(["umount", "-l", "/etc", str(base / "etc"), str(base)], stderr=subprocess.DEVNULL)
        shutil.rmtree(base, ignore_errors=True)


def _make_templates(base: Path, absent: Mapping[str, str]) -> tuple[dict[str, Path], dict[str, str]]:
    """Make data directories to copy, and certificates."""
    templates = {kind: base / kind for kind in DIALECTS if kind not in absent}
    for kind, directory in templates.items():
        DIALECTS[kind].initialise(find_server(kind).path, directory)
        DIALECTS[kind].renew_identity(directory)
    if "postgresql" not in absent:
        templates["postgresql"] = base / "postgresql"
        _initialise_postgresql(find_server("postgresql").path, templates["postgresql"])
    tls = make_certificates(base, ["127.0.0.1"])
    return templates, {"certificate": str(tls.certificate), "key": str(tls.key), "ca": str(tls.ca)}


def _initialise_postgresql(program: Path, directory: Path) -> None:
    """Initialise a data directory as Debian's package does, with a role for clients. PostgreSQL refuses to run as root."""
    directory.mkdir(mode=0o700)
    shutil.chown(directory, "postgres", "postgres")
    account: dict[str, Any] = {
        "user": "postgres",
        "group": account_group("postgres"),
        "extra_groups": [],
        "check": True,
    }
    account |= {"cwd": "/", "stdout": subprocess.DEVNULL}
    subprocess.run([program.parent / "initdb", "--no-sync", "--auth=trust", "-D", directory], **account)
    single = [str(program), "--single", "-D", str(directory), "postgres"]
    subprocess.run(single, input=b"CREATE ROLE app LOGIN PASSWORD 'secret'\n", **account)


def _apply_proposals(cases: Sequence[RunningCase], servers: Mapping[str, Any]) -> None:
    """Change each setup only as proposed."""
    for running in cases:
        running.proposed = Proposals.from_findings(servers[running.case.name].get("findings", []))
        running.stop_clients()
        if running.proposed.server:
            running.stop_server()
            running.options = running.proposed.apply(running.options)
            running.start_server()
        running.accept_clients()
        running.start_client()


if __name__ == "__main__":
    main()
