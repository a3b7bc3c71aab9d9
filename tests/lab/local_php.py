"""PHP-FPM of this machine."""

from __future__ import annotations

import pytest

from howfar.contract.messages import ServiceName
from howfar.errors import HowfarError
from howfar.experiments.page.lab.php_fpm import FpmProgram, find_php_fpm


def require_php(sql: ServiceName = "mysql") -> FpmProgram:
    """PHP-FPM with the extensions for pages whose statements go to `sql`; skips the test if it is not installed."""
    try:
        return find_php_fpm(sql)
    except HowfarError as error:
        pytest.skip(f"{error.message} {error.advice}")
