"""An existing Ray cluster: its nodes are the hosts, its Ray takes the place of howfar's own, and its owner starts and stops it."""

from __future__ import annotations

import io
import logging
import re
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from howfar.errors import LabError, UsageError
from howfar.fleet.hosts_file import ROLES, HostsFile, HostSpec, Role
from howfar.fleet.inner import SandboxedAgent
from howfar.fleet.joined import quiet
from howfar.fleet.remote import RemoteHost
from howfar.fleet.ship import packed
from howfar.lab.sandbox import heed_signals

SCHEME = "ray://"
_ADDRESS = re.compile(r"[A-Za-z0-9.-]+:\d{1,5}")
_ROLE = "role:"
_BY_ADDRESS = re.compile(r"node(-\d+){4}")
"""The name of a node that shares its host name with others: `node-10-0-0-1`."""
_SHARE = 0.001
"""Share that an agent takes of the resource that each node of a Ray cluster has by its address."""
_ENDS_S = 10.0
"""Ray may need this long to notice that the last command has ended."""
_POLL_S = 0.2


@dataclass(frozen=True)
class ExistingCluster:
    """A cluster of the user's, by the address of its head."""

    address: str

    @property
    def path(self) -> str:
        return f"{SCHEME}{self.address}"

    def measures_into(self, run: Path) -> None:
        """Do nothing: there is no command outside. See `cluster.Cluster`."""


def existing_cluster(where: str) -> ExistingCluster:
    """`where`: ray://HOST:PORT. Raises UsageError."""
    address = where.removeprefix(SCHEME)
    if not _ADDRESS.fullmatch(address):
        raise UsageError(
            f"{where} is no address of a Ray cluster", "Example: ray://10.0.0.1:6379, its head and GCS port."
        )
    return ExistingCluster(address)


@contextmanager
def join_existing(cluster: ExistingCluster) -> Iterator[tuple[HostsFile, dict[str, RemoteHost]]]:
    """Connect and start an agent in a sandbox on each node. Call it on a machine of the cluster. Raises LabError."""
    with tempfile.TemporaryDirectory(prefix="howfar-ray-") as directory:
        _unpack(Path(directory))
        quiet(Path(directory) / "driver.log")
        try:
            ray.init(
                address=cluster.address,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                namespace="howfar",
                runtime_env={"working_dir": directory},
            )
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise LabError(
                f"the Ray cluster at {cluster.address} does not take us in: {error}",
                "Run howfar on a machine of the cluster, with its version of Ray and Python and, where it has one, its token "
                "(RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH).",
            ) from error
        heed_signals()  # Ray's own handler would exit silently
        try:
            with _alone(cluster):
                file = hosts_of(ray.nodes())
                hosts = {
                    name: RemoteHost(name, spec, SandboxedAgent, {f"node:{spec.address}": _SHARE})
                    for name, spec in file.hosts.items()
                }
                try:
                    for host in hosts.values():
                        host.join()
                    yield file, hosts
                finally:
                    for host in hosts.values():
                        host.leave()
        finally:
            ray.shutdown()


class _Driver:
    """An actor that shows by its name that a command measures between the nodes. Ray ends it with that command."""


@contextmanager
def _alone(cluster: ExistingCluster) -> Iterator[None]:
    """Exclude other commands of howfar from this cluster. Raises UsageError."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    named = ray.remote(_Driver).options(name="driver", num_cpus=0, scheduling_strategy=here)
    deadline = time.monotonic() + _ENDS_S
    while True:
        try:
            driver = named.remote()
            break
        except ValueError as error:  # the name is taken
            if time.monotonic() > deadline:
                raise UsageError(
                    f"the Ray cluster at {cluster.address} is in use by another command of howfar",
                    "Two measurements would disturb each other.",
                ) from error
        time.sleep(_POLL_S)
    try:
        yield
    finally:
        with suppress(ray.exceptions.RayError):  # the cluster may be gone
            ray.kill(driver)


def _unpack(directory: Path) -> None:
    """Unpack the archive that is otherwise copied by ssh, for Ray to distribute the directory."""
    _, archive = packed()
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as unpacked:
        if hasattr(tarfile, "data_filter"):  # Python has filters since 3.11.4; the archive is our own
            unpacked.extraction_filter = tarfile.data_filter
        unpacked.extractall(directory)


def hosts_of(nodes: Sequence[Mapping[str, Any]]) -> HostsFile:
    """A cluster's nodes as hosts: by host name if it is unique, otherwise by address, so that a name always means the same node; each
    with the roles that its resources name (`role:client`), or with all. Raises LabError."""
    alive = sorted((node for node in nodes if node["Alive"]), key=lambda node: str(node["NodeManagerAddress"]))
    names = [re.sub(r"[^a-z0-9-]", "-", str(node["NodeManagerHostname"]).lower().partition(".")[0]) for node in alive]
    found: dict[str, HostSpec] = {}
    for node, name in zip(alive, names, strict=True):
        roles = _roles(str(node["NodeManagerHostname"]), node["Resources"])
        unique = names.count(name) == 1 and name[:1].isalpha() and not _BY_ADDRESS.fullmatch(name)
        try:
            spec = HostSpec(address=str(node["NodeManagerAddress"]), roles=roles or ROLES)
        except ValueError as error:
            raise LabError(
                f"a node of the cluster has the address {node['NodeManagerAddress']}, by which others cannot reach it",
                "Start it with `ray start --node-ip-address=` and an IPv4 address of its network.",
            ) from error
        found[name if unique else f"node-{spec.address.replace('.', '-')}"] = spec
    if len(found) < 2:
        raise LabError(
            f"the Ray cluster has {len(found)} node that is alive, and client and server are two",
            "`ray status` shows its nodes.",
        )
    return HostsFile(hosts=found)


def _roles(host: str, resources: Iterable[str]) -> tuple[Role, ...]:
    """The roles that resources name. Raises LabError if there is no such role."""
    named = {word.removeprefix(_ROLE) for word in resources if word.startswith(_ROLE)}
    if unknown := named - set(ROLES):
        raise LabError(
            f"node {host} of the cluster has the resource {_ROLE}{min(unknown)}, and there is no such role",
            f"Known: {', '.join(ROLES)}.",
        )
    return tuple(role for role in ROLES if role in named)
