"""PHP-FPM as the application of an environment in the laboratory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from howfar.contract.messages import ServiceName
from howfar.engine.process import Launcher
from howfar.experiments.page.factors import PHP
from howfar.experiments.page.lab.php_fpm import PhpApplication, find_php_fpm, php_application
from howfar.lab.application import ApplicationKind, InstalledApplication
from howfar.lab.connected_server import ConnectedServer


def _find_php(sql: ServiceName) -> InstalledApplication:
    program = find_php_fpm(sql)

    @contextmanager
    def start(
        work: Path, launcher: Launcher, children: int, servers: Sequence[ConnectedServer]
    ) -> Iterator[PhpApplication]:
        with php_application(program, work, launcher, children, servers) as application:
            yield application

    return InstalledApplication(f"PHP-FPM {program.version}", start)


APPLICATIONS = (ApplicationKind(PHP, _find_php),)
