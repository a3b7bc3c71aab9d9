"""An existing Ray cluster as a testbed: its nodes are the hosts. The cluster's owner starts and stops Ray; howfar does not."""

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
from howfar.fleet.namespace_agent import SandboxedAgent
from howfar.fleet.ray_driver import redirect_stderr
from howfar.fleet.remote import RemoteHost
from howfar.fleet.ship import build_archive
from howfar.lab.sandbox import install_signal_handlers

SCHEME = "ray://"
_ADDRESS = re.compile(r"[A-Za-z0-9.-]+:\d{1,5}")
_ROLE_PREFIX = "role:"
_ADDRESS_NAME = re.compile(r"node(-\d+){4}")
"""Pattern of the name given to a node that shares its host name with others: `node-10-0-0-1`."""
_RESOURCE_SHARE = 0.001
"""Amount that an agent takes of the resource `node:ADDRESS`, so that it runs on that node: each node of a Ray cluster has such
a resource."""
_RELEASE_TIMEOUT_S = 10.0
"""Time that Ray may need to notice the end of the previous command."""
_POLL_INTERVAL_S = 0.2


@dataclass(frozen=True)
class ExistingCluster:
    """The user's own Ray cluster, named by the address of its head."""

    address: str

    @property
    def path(self) -> str:
        return f"{SCHEME}{self.address}"

    def record_run_file(self, run: Path) -> None:
        """Do nothing, because the command runs in no other namespaces. See `cluster.FileCluster`."""


def parse_cluster_address(url: str) -> ExistingCluster:
    """Parse the address `url`, which is ray://HOST:PORT. Raises UsageError."""
    address = url.removeprefix(SCHEME)
    if not _ADDRESS.fullmatch(address):
        raise UsageError(
            f"{url} is not the address of a Ray cluster", "Example: ray://10.0.0.1:6379, its head and GCS port."
        )
    return ExistingCluster(address)


@contextmanager
def join_existing(cluster: ExistingCluster) -> Iterator[tuple[HostsFile, dict[str, RemoteHost]]]:
    """Connect to the cluster from one of its machines, and start an agent in a sandbox on each node. Raises LabError."""
    with tempfile.TemporaryDirectory(prefix="howfar-ray-") as directory:
        _unpack_package(Path(directory))
        redirect_stderr(Path(directory) / "driver.log")
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
                f"the Ray cluster at {cluster.address} could not be joined: {error}",
                "Run howfar on a machine of the cluster, with its version of Ray and Python and, where it has one, its token "
                "(RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH).",
            ) from error
        install_signal_handlers()  # Ray's own handler would exit silently
        try:
            with _exclude_other_commands(cluster):
                file = hosts_from_nodes(ray.nodes())
                hosts = {
                    name: RemoteHost(name, spec, SandboxedAgent, {f"node:{spec.address}": _RESOURCE_SHARE})
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


class _DriverActor:
    """An actor whose name shows that a command is measuring in this cluster. Ray ends it with that command."""


@contextmanager
def _exclude_other_commands(cluster: ExistingCluster) -> Iterator[None]:
    """Exclude other commands of howfar from this cluster. Raises UsageError."""
    scheduling = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    named_driver = ray.remote(_DriverActor).options(name="driver", num_cpus=0, scheduling_strategy=scheduling)
    deadline = time.monotonic() + _RELEASE_TIMEOUT_S
    while True:
        try:
            driver = named_driver.remote()
            break
        except ValueError as error:  # the name is taken
            if time.monotonic() > deadline:
                raise UsageError(
                    f"the Ray cluster at {cluster.address} is in use by another command of howfar",
                    "Two measurements would disturb each other.",
                ) from error
        time.sleep(_POLL_INTERVAL_S)
    try:
        yield
    finally:
        with suppress(ray.exceptions.RayError):  # the cluster may be gone
            ray.kill(driver)


def _unpack_package(directory: Path) -> None:
    """Unpack the archive of howfar into a directory, which Ray then copies to the nodes."""
    _, archive = build_archive()
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        if hasattr(tarfile, "data_filter"):  # Python has filters since 3.11.4; the archive is our own
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(directory)


def hosts_from_nodes(nodes: Sequence[Mapping[str, Any]]) -> HostsFile:
    """Return a cluster's nodes as hosts, named by host name if that is unique, otherwise by address, so that a name always means the
    same node. Each host has the roles that its resources name (`role:client`), or all. Raises LabError."""
    alive = sorted((node for node in nodes if node["Alive"]), key=lambda node: str(node["NodeManagerAddress"]))
    names = [re.sub(r"[^a-z0-9-]", "-", str(node["NodeManagerHostname"]).lower().partition(".")[0]) for node in alive]
    hosts: dict[str, HostSpec] = {}
    for node, name in zip(alive, names, strict=True):
        roles = _roles_from_resources(str(node["NodeManagerHostname"]), node["Resources"])
        is_unique = names.count(name) == 1 and name[:1].isalpha() and not _ADDRESS_NAME.fullmatch(name)
        try:
            spec = HostSpec(address=str(node["NodeManagerAddress"]), roles=roles or ROLES)
        except ValueError as error:
            raise LabError(
                f"a node of the cluster has the address {node['NodeManagerAddress']}, by which others cannot reach it",
                "Start it with `ray start --node-ip-address=` and an IPv4 address of its network.",
            ) from error
        hosts[name if is_unique else f"node-{spec.address.replace('.', '-')}"] = spec
    if len(hosts) < 2:
        raise LabError(
            f"a client and a server need two nodes, and the Ray cluster's live nodes are {len(hosts)}",
            "`ray status` shows its nodes.",
        )
    return HostsFile(hosts=hosts)


def _roles_from_resources(host: str, resources: Iterable[str]) -> tuple[Role, ...]:
    """Return the roles that resources name. Raises LabError for an unknown role."""
    named_roles = {word.removeprefix(_ROLE_PREFIX) for word in resources if word.startswith(_ROLE_PREFIX)}
    if unknown := named_roles - set(ROLES):
        raise LabError(
            f"node {host} of the cluster has the resource {_ROLE_PREFIX}{min(unknown)}, and there is no such role",
            f"Known: {', '.join(ROLES)}.",
        )
    return tuple(role for role in ROLES if role in named_roles)
