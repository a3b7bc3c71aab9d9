"""PHP-FPM on a host: the pool held there, and the driver's side of it."""

from __future__ import annotations

from howfar.engine.messages import FastCgi, PageScript, ServiceName
from howfar.fleet.node import WORK
from howfar.fleet.remote import Held
from howfar.lab.network import Cpus, Host
from howfar.lab.php.php_fpm import Answer, PhpFpm, find_php_fpm


class HeldPool(PhpFpm):
    """A pool that ends with the object."""

    def __init__(self, sql: ServiceName, cpus: Cpus, children: int) -> None:
        """Raises MissingError."""
        work = WORK / "php"
        work.mkdir(exist_ok=True)
        super().__init__(find_php_fpm(sql), work, Host("application", None).launcher(cpus), children)

    def close(self) -> None:
        self.stop()


class RemotePool:
    """See `php_fpm.Pool`."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self.pid: int = held.facts["pid"]
        self.children: int = held.facts["children"]

    def give(self, script: PageScript, name: str) -> FastCgi:
        found: FastCgi = self._held.call("give", script, name)
        return found

    def ask(self, parameters: dict[str, str], patience_s: float) -> Answer:
        found: Answer = self._held.call("ask", parameters, patience_s)
        return found

    def check_alive(self, when: str) -> None:
        self._held.call("check_alive", when)

    def losses(self) -> tuple[str, ...]:
        return tuple(self._held.call("losses"))
