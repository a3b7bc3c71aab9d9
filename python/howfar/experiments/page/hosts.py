"""PHP-FPM on the client's host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import cast

from howfar.contract.messages import FastCgi, PageScript, ServiceName
from howfar.experiments.page.factors import PHP
from howfar.experiments.page.lab.php_fpm import PhpApplication, PhpFpm, PhpReply, find_php_fpm
from howfar.fleet.application import HostApplication
from howfar.fleet.node import WORK_DIRECTORY
from howfar.fleet.remote import RemoteHost, RemoteObject
from howfar.lab.connected_server import ConnectedServer
from howfar.lab.network import Cpus, Host


class HostedPool(PhpFpm):
    """A PHP-FPM pool that ends with this object."""

    def __init__(self, sql: ServiceName, cpus: Cpus, children: int) -> None:
        """Raises MissingError."""
        work = WORK_DIRECTORY / "php"
        work.mkdir(exist_ok=True)
        super().__init__(find_php_fpm(sql), work, Host("application", None).launcher(cpus), children)
        self.facts = self.pid

    def close(self) -> None:
        self.stop()


class RemotePool:
    """A `php_fpm.Pool` on a remote host."""

    def __init__(self, remote_pool: RemoteObject, children: int) -> None:
        self._remote_pool, self.children = remote_pool, children
        self.pid = remote_pool.facts(int)

    def install_page(self, script: PageScript, name: str) -> FastCgi:
        return cast(FastCgi, self._remote_pool.call("install_page", script, name))

    def send_request(self, parameters: dict[str, str], timeout_s: float) -> PhpReply:
        return cast(PhpReply, self._remote_pool.call("send_request", parameters, timeout_s))

    def check_alive(self, when: str) -> None:
        self._remote_pool.call("check_alive", when)

    def child_deaths(self) -> tuple[str, ...]:
        return tuple(self._remote_pool.call("child_deaths"))


def _start_php(
    client: RemoteHost, cpus: Cpus, children: int, servers: Sequence[ConnectedServer], stack: ExitStack
) -> PhpApplication:
    pool = client.create(HostedPool, servers[0].name, cpus, children, called=PHP)
    stack.callback(pool.drop)
    return PhpApplication(RemotePool(pool, children), pool.call("become_ready"), servers)


APPLICATIONS = (HostApplication(PHP, _start_php),)
