"""Optional features of a server program, found by starting the program once and querying it.

The version does not determine its features: distributions build the same release with and without its plugins. Results are cached by
the program's hash; a plugin that is installed later is found only with `refresh`.
"""

from __future__ import annotations

import contextlib
from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, ValidationError

from howfar.errors import HowfarError, LabError
from howfar.lab.cache import cache_home, work_directory
from howfar.lab.network import Host, usable_cpus
from howfar.lab.servers import ServerContext, ServerProcess, Tables, find_store
from howfar.lab.servers.program import Program

_TLS_LIBRARY_VARIABLES = ("version_ssl_library", "Tls_library_version")
"""MariaDB's system variable and MySQL's status variable with the name of the TLS library, which is set even if TLS is off."""
_OTHER_TLS_LIBRARY = "OpenSSL"
"""The only TLS library with which the other servers can be built."""
_SEMI_SYNC_VARIABLES = ("rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled")
SEMI_SYNC_PLUGINS = (("rpl_semi_sync_source", "semisync_source.so"), ("rpl_semi_sync_master", "semisync_master.so"))
"""Names and files of the plugins with which a primary waits for replicas, in the order to try them. Other servers have this built
in."""
_CLONE_PLUGIN = ("clone", "mysql_clone.so")
_GROUP_REPLICATION_PLUGIN = ("group_replication", "group_replication.so")
"""MySQL's plugins, by name and file; MariaDB has neither."""


@runtime_checkable
class _PlainServer(Protocol):
    """A PostgreSQL or key-value server, which has neither protocol compression nor MySQL's plugins."""

    def has_tls(self) -> bool: ...


class Features(BaseModel):
    """Features found in one server program."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tls: str | None
    """The TLS library; None if built without TLS."""
    compression: tuple[str, ...]
    """Compressions of the protocol: zlib, zstd."""
    semi_sync: bool
    clone: bool
    group_replication: bool


def find_features(program: Program, *, refresh: bool = False) -> Features:
    """The program's features, from the cache if they are there, unless `refresh`. Raises ServerCrashed, LabError."""
    cached = cache_home() / "features" / f"{program.key}.json"
    if not refresh:
        with contextlib.suppress(OSError, ValidationError):
            return Features.model_validate_json(cached.read_text())
    features = _query_features(program)
    with contextlib.suppress(OSError):  # without a writable cache, each query takes a second
        cached.parent.mkdir(parents=True, exist_ok=True)
        new_file = cached.with_suffix(".new")
        new_file.write_text(features.model_dump_json())
        new_file.rename(cached)
    return features


def _query_features(program: Program) -> Features:
    store = find_store(str(program.path), Tables(0, 0))
    with work_directory(store.data_bytes()) as work:
        host = Host("here", None)
        store.prepare(ServerContext(work=work, host=host, cpus=usable_cpus(), connections=1, namespaced=False))
        server = store.start(networking=False)
        try:
            if isinstance(server, _PlainServer):
                tls = _OTHER_TLS_LIBRARY if server.has_tls() else None
                return Features(tls=tls, compression=(), semi_sync=False, clone=False, group_replication=False)
            return _query_sql_features(server)
        finally:
            server.stop()


def _query_sql_features(server: ServerProcess) -> Features:
    variables = {str(row["Variable_name"]): str(row["Value"]) for row in server.query("SHOW GLOBAL VARIABLES")}
    variables |= {str(row["Variable_name"]): str(row["Value"]) for row in server.query("SHOW GLOBAL STATUS")}
    library = next((variables[name] for name in _TLS_LIBRARY_VARIABLES if variables.get(name)), None)
    return Features(
        tls=library,
        compression=_find_compressions(variables),
        semi_sync=any(name in variables for name in _SEMI_SYNC_VARIABLES) or _try_primary_plugins(server),
        clone=_try_plugin(server, *_CLONE_PLUGIN),
        group_replication=_try_plugin(server, *_GROUP_REPLICATION_PLUGIN),
    )


def _find_compressions(variables: dict[str, str]) -> tuple[str, ...]:
    """Compressions of the protocol. MySQL lists its algorithms; MariaDB reports whether it has zlib, its only one."""
    if (listed := variables.get("protocol_compression_algorithms")) is not None:
        return tuple(sorted(set(listed.split(",")) - {"uncompressed"}))
    return ("zlib",) if variables.get("have_compress") == "YES" else ()


def _try_primary_plugins(server: ServerProcess) -> bool:
    """Whether a plugin for a semi-synchronous primary loads, for servers without built-in support."""
    return any(_try_plugin(server, name, file) for name, file in SEMI_SYNC_PLUGINS)


def _try_plugin(server: ServerProcess, name: str, file: str) -> bool:
    """Whether the plugin loads. It is installed only in this server's temporary data."""
    try:
        server.query(f"INSTALL PLUGIN {name} SONAME '{file}'")
    except LabError:
        return False
    return True


def features_or_reason(program: Program, *, refresh: bool = False) -> Features | str:
    """The program's features, or the reason why the server could not be queried."""
    try:
        return find_features(program, refresh=refresh)
    except HowfarError as error:
        return error.message.splitlines()[0]
