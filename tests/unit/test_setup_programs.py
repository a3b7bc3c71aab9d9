"""`howfar setup`: package names of each family, nothing started or left, and what works here."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from howfar.cli.record import record
from howfar.cli.setup import setup
from howfar.errors import HowfarError, LabError, MissingError, SandboxForbidden
from howfar.lab.sandbox import APPARMOR_OPTION, CONTAINER_OPTIONS
from howfar.setup import check, install
from howfar.setup.check import CheckedPart, restrictions
from howfar.setup.install import PACKAGE_MANAGERS, PackageManager, install_packages, plan_installation, untested_system
from howfar.setup.programs import RequiredProgram, missing_programs, program_groups, required_programs

BY_NAME = {manager.name: manager for manager in PACKAGE_MANAGERS}
LINES = {
    (
        "apt",
        "lab",
    ): "apt-get update && apt-get install --no-remove --no-install-recommends iproute2 util-linux mariadb-server-core "
    "mariadb-client-core socat",
    (
        "apt",
        "page",
    ): "apt-get update && apt-get install --no-remove --no-install-recommends redis-server memcached php-fpm php-mysql "
    "php-pgsql php-redis php-memcached",
    ("dnf", "lab"): "dnf install --setopt=install_weak_deps=False iproute util-linux mariadb-server mariadb socat",
    ("dnf", "postgresql"): "dnf install --setopt=install_weak_deps=False postgresql-server",
    (
        "zypper",
        "lab",
    ): "zypper --non-interactive install --no-recommends iproute2 util-linux mariadb mariadb-client socat",
    ("apk", "lab"): "apk add --update-cache iproute2 util-linux-misc setpriv mariadb mariadb-client socat",
    ("pacman", "hops"): "pacman -Sy --needed --noconfirm haproxy pgbouncer openssh stunnel",
}
"""The command that a person is told to type where nothing of a group is installed."""


def of(group: str) -> list[RequiredProgram]:
    return [one for one in required_programs() if one.group == group]


@pytest.mark.parametrize(("manager", "group"), LINES)
def test_each_family_has_its_own_names(manager: str, group: str) -> None:
    assert plan_installation(of(group), BY_NAME[manager]).command == LINES[manager, group]


def test_what_no_package_has_is_named_and_not_asked_for() -> None:
    found = plan_installation(of("hops"), BY_NAME["dnf"])
    assert found.unpackaged == ("nutcracker",) and "nutcracker" not in found.packages


def test_every_program_belongs_to_a_group_and_every_group_but_the_first_has_an_option() -> None:
    names = [group.name for group in program_groups()]
    assert {one.group for one in required_programs()} == set(names)
    options = {option for parameter in setup.params for option in parameter.opts}
    assert {f"--{name}" for name in names[1:]} <= options and "--lab" not in options


SYSTEMS = [
    ("apt", {"ID": "debian", "VERSION_ID": "12", "PRETTY_NAME": "Debian 12"}, None),
    ("apt", {"ID": "debian", "PRETTY_NAME": "Debian sid"}, None),
    ("apt", {"ID": "debian", "VERSION_ID": "11", "PRETTY_NAME": "Debian 11"}, "Debian 11"),
    ("apt", {"ID": "ubuntu", "VERSION_ID": "22.04", "PRETTY_NAME": "Ubuntu 22.04"}, None),
    ("apt", {"ID": "ubuntu", "VERSION_ID": "20.04", "PRETTY_NAME": "Ubuntu 20.04"}, "Ubuntu 20.04"),
    ("apt", {"ID": "mint", "VERSION_ID": "22", "PRETTY_NAME": "Mint 22"}, "Mint 22"),
    (
        "dnf",
        {"ID": "rhel", "VERSION_ID": "9.4", "PRETTY_NAME": "Red Hat Enterprise Linux 9.4"},
        "Red Hat Enterprise Linux 9.4",
    ),
    ("apk", {}, "this system"),
]


@pytest.mark.parametrize(("manager", "release", "untested"), SYSTEMS)
def test_only_what_was_tested_is_claimed(
    monkeypatch: pytest.MonkeyPatch, manager: str, release: dict[str, str], untested: str | None
) -> None:
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: release)
    assert untested_system(BY_NAME[manager]) == untested


@pytest.mark.parametrize(("version", "ending"), [("22.04", "-10.6"), ("24.04", "")])
def test_a_release_may_have_its_own_names(monkeypatch: pytest.MonkeyPatch, version: str, ending: str) -> None:
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "ubuntu", "VERSION_ID": version})
    packages = plan_installation(of("lab"), BY_NAME["apt"]).packages
    assert {f"mariadb-server-core{ending}", f"mariadb-client-core{ending}", "socat"} <= set(packages)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, str]], Path]:
    """A function that makes the root of a machine whose PATH has only these scripts; each writes its arguments to `said`."""

    def made(scripts: Mapping[str, str]) -> Path:
        folder = tmp_path / "usr/bin"
        folder.mkdir(parents=True)
        for name, text in scripts.items():
            script = folder / name
            script.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/said\n{text}\n')
            script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/bin")
        return tmp_path

    return made


BRINGS = """case "$*" in *install*) ;; *) exit 0 ;; esac
[ "$(readlink {root}/etc/systemd/system/redis-server.service)" = /dev/null ] || exit 9
[ "$(readlink {root}/etc/systemd/system/php8.2-fpm.service)" = /dev/null ] || exit 9
[ -x {root}/usr/sbin/policy-rc.d ] || exit 9
mkdir -p {root}/usr/lib/systemd/system; : >{root}/usr/lib/systemd/system/redis-server.service"""
"""An apt-get that fails unless services are kept from starting, and installs one of the units."""


def test_no_service_starts_and_only_masks_of_units_that_came_stay(
    machine: Callable[[Mapping[str, str]], Path], tmp_path: Path
) -> None:
    root = machine({"apt-get": BRINGS.format(root=tmp_path), "apt-cache": "echo '  Depends: php8.2-fpm'"})
    masked = install_packages(plan_installation(of("page"), BY_NAME["apt"]), root)
    assert masked == ["redis-server.service"]
    assert sorted(path.name for path in (root / "etc/systemd/system").iterdir()) == ["redis-server.service"]
    assert not (root / "usr/sbin/policy-rc.d").exists()


def test_postgresql_makes_no_cluster(machine: Callable[[Mapping[str, str]], Path], tmp_path: Path) -> None:
    rule = tmp_path / "etc/postgresql-common/createcluster.d/howfar.conf"
    root = machine({"apt-get": f'case "$*" in *install*) grep -q "create_main_cluster = false" {rule} ;; esac'})
    install_packages(plan_installation(of("postgresql"), BY_NAME["apt"]), root)
    assert not rule.exists()


def test_a_policy_of_the_machines_own_is_not_touched(machine: Callable[[Mapping[str, str]], Path]) -> None:
    root = machine({"apt-get": "exit 0"})
    policy = root / "usr/sbin/policy-rc.d"
    policy.parent.mkdir(parents=True)
    policy.write_text("#!/bin/sh\nexit 101\n")
    install_packages(plan_installation(of("postgresql"), BY_NAME["apt"]), root)
    assert policy.read_text() == "#!/bin/sh\nexit 101\n"


def test_a_unit_that_the_machine_has_is_not_masked(machine: Callable[[Mapping[str, str]], Path]) -> None:
    root = machine({"apt-get": "exit 0"})
    unit = root / "lib/systemd/system/postgresql.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    install_packages(plan_installation(of("postgresql"), BY_NAME["apt"]), root)
    assert not (root / "etc/systemd/system/postgresql.service").is_symlink()


def test_a_failure_shows_the_last_lines_and_leaves_nothing(machine: Callable[[Mapping[str, str]], Path]) -> None:
    root = machine({"apt-get": 'case "$*" in *install*) echo no room; exit 100 ;; esac', "dpkg": "exit 0"})
    with pytest.raises(LabError, match=r"(?s)ended with exit code 100 and said:.*no room"):
        install_packages(plan_installation(of("postgresql"), BY_NAME["apt"]), root)
    assert not list((root / "etc/systemd/system").iterdir()) and not (root / "usr/sbin/policy-rc.d").exists()
    assert "dpkg" not in (root / "said").read_text(), "nothing was interrupted"


def test_an_installation_that_was_interrupted_is_finished_first(machine: Callable[[Mapping[str, str]], Path]) -> None:
    fails_once = (
        'case "$*" in *install*) [ -e {0}/done ] || {{ echo "you must run dpkg --configure -a"; exit 100; }} ;; esac'
    )
    root = machine({"dpkg": "exit 0"})
    script = root / "usr/bin/apt-get"
    script.write_text(f"#!/bin/sh\n{fails_once.format(root)}\n")
    script.chmod(0o755)
    (root / "usr/bin/dpkg").write_text(f"#!/bin/sh\n: >{root}/done\n")
    install_packages(plan_installation(of("postgresql"), BY_NAME["apt"]), root)
    assert (root / "done").exists()


@pytest.mark.parametrize(("age_s", "refreshes"), [(60, 0), (86_400, 1)])
def test_lists_that_apt_has_just_fetched_are_not_fetched_again(
    machine: Callable[[Mapping[str, str]], Path], age_s: float, refreshes: int
) -> None:
    root = machine({"apt-get": "exit 0"})
    lists = root / "var/lib/apt/lists"
    lists.mkdir(parents=True)
    os.utime(lists, (time.time() - age_s,) * 2)
    install_packages(plan_installation(of("postgresql"), BY_NAME["apt"]), root)
    assert (root / "said").read_text().count(" update") == refreshes


def test_an_installation_that_fails_with_fresh_lists_fetches_them_and_tries_again(
    machine: Callable[[Mapping[str, str]], Path], tmp_path: Path
) -> None:
    root = machine(
        {"apt-get": f'case "$*" in *update*) : >{tmp_path}/new ;; *) [ -e {tmp_path}/new ] || exit 100 ;; esac'}
    )
    (root / "var/lib/apt/lists").mkdir(parents=True)
    install_packages(plan_installation(of("postgresql"), BY_NAME["apt"]), root)
    assert (root / "said").read_text().count(" install ") == 2


# ---------------------------------------------------------------- the command


@pytest.fixture
def nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = lambda of: tuple(one for one in required_programs() if one.group in of)  # noqa: E731
    monkeypatch.setattr("howfar.cli.setup.missing_programs", absent)
    monkeypatch.setattr(check, "missing_programs", absent)
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "x", "PRETTY_NAME": "Xubuntu"})


def run(
    *arguments: str, manager: PackageManager = PACKAGE_MANAGERS[0], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    monkeypatch.setattr(install, "package_manager", lambda: manager)
    done = CliRunner().invoke(setup, arguments, standalone_mode=False)
    if done.exception is not None:
        return getattr(
            done.exception, "exit_code", 70
        ), f"{done.output}{done.exception}\n{getattr(done.exception, 'advice', '')}"
    return done.return_value, done.output


@pytest.mark.usefixtures("nothing_here")
def test_an_ordinary_user_is_told_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    code, output = run("--postgresql", monkeypatch=monkeypatch)
    assert code == 3 and "sudo " in output and output.rstrip().endswith("setup --postgresql")
    assert "mariadb-server-core" in output


@pytest.mark.usefixtures("nothing_here")
def test_an_untried_family_is_said_to_be_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run("--hops", "--print", manager=BY_NAME["dnf"], monkeypatch=monkeypatch)
    assert code == 3  # something is missing, as a script can test
    assert "the names of these packages are untested on Xubuntu" in output
    assert "no package is known here for nutcracker" in output
    assert "this command may start services" in output
    assert "dnf install" in output.splitlines()[-1]


@pytest.mark.usefixtures("nothing_here")
def test_the_check_says_what_is_missing_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    monkeypatch.setenv("COLUMNS", "80")
    code, output = run("--check", monkeypatch=monkeypatch)
    lines = output.splitlines()
    assert code == 0 and lines[0].startswith("howfar ")
    assert all(len(line) <= 80 for line in lines)
    whole = " ".join(output.split())
    assert "setup --page`" in whole and "extra `report`" in whole
    parts = json.loads(run("--check", "--json", monkeypatch=monkeypatch)[1])["parts"]
    assert [part["works"] for part in parts[2:]] == [False] * (len(parts) - 2)


@pytest.mark.parametrize(("lacking", "works"), [((), True), (("SYS_ADMIN", "NET_ADMIN"), True), (("NET_RAW",), False)])
def test_capturing_needs_one_right_and_no_laboratory(
    lacking: tuple[str, ...], works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container without privileges, which may capture what its own network carries."""
    monkeypatch.setattr(check, "lacking_capabilities", lambda: lacking)
    monkeypatch.setattr(check, "missing_programs", lambda names: [])
    monkeypatch.setattr(check, "_probe_capture", lambda: "")
    (capture,) = (group for group in program_groups() if group.name == "capture")
    assert check._check_programs(capture, laboratory_works=False).works is works


def test_a_filter_that_refuses_packet_sockets_stops_capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "lacking_capabilities", lambda: ())
    monkeypatch.setattr(check, "missing_programs", lambda names: [])
    monkeypatch.setattr(check, "_probe_capture", lambda: "Operation not permitted")
    (capture,) = (group for group in program_groups() if group.name == "capture")
    part = check._check_programs(capture, laboratory_works=True)
    assert (part.works, part.forbidden) == (False, True) and "Operation not permitted" in part.detail


def test_without_an_engine_the_check_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        check,
        "check_machine",
        lambda: [CheckedPart("howfar TARGET", False, "no engine", "Reinstall."), CheckedPart("lab", True, "")],
    )
    code, output = run("--check", monkeypatch=monkeypatch)
    assert code == 3 and output.splitlines()[0] == "howfar does not work here: its engine does not start."


WORKS = CheckedPart("lab", True, "as root")


def test_the_laboratory_needs_the_engine_and_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise MissingError("no engine")

    monkeypatch.setattr(check, "_probe_laboratory", lambda: "as root")
    monkeypatch.setattr(check, "_probe_engine", fails)
    parts = {part.name: part for part in check.check_machine()}
    assert not parts[check._LABORATORY].works and not parts["run paths (MariaDB)"].works
    monkeypatch.undo()
    (tmp_path / "howfar").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    part = next(part for part in check.check_machine() if part.name == check._LABORATORY)
    assert not part.works and ("cache directory" in part.detail or part.forbidden)


FORBIDDEN = CheckedPart(check._LABORATORY, False, "EPERM", "", forbidden=True)
NOT_INSTALLED = CheckedPart("run page", False, "not installed: memcached")


@pytest.fixture
def filtered(tmp_path: Path) -> Path:
    """A folder with the files of /proc and /sys where all filters are in force and user namespaces are off."""
    (tmp_path / "self/attr").mkdir(parents=True)
    (tmp_path / "self/status").write_text("Name:\tx\nSeccomp:\t2\n")
    (tmp_path / "self/attr/current").write_text("docker-default (enforce)\n")
    for file, text in (("fs/selinux/enforce", "1"), ("sys/user/max_user_namespaces", "0\n")):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    return tmp_path


def test_a_filter_is_named_with_the_part_that_it_may_stop_and_what_to_do(
    filtered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = restrictions([WORKS, FORBIDDEN, NOT_INSTALLED], filtered, filtered)
    assert [(one.name, one.stops) for one in found] == [
        (name, (check._LABORATORY,)) for name in ("seccomp", "selinux", "apparmor", "user-namespaces")
    ]
    for one, option in zip(
        found,
        ("seccomp=unconfined", "label=disable", "apparmor=unconfined", "user.max_user_namespaces=10000"),
        strict=True,
    ):
        assert option in one.remedy and option in one.sentence
        assert check._LABORATORY in one.sentence


def test_a_filter_that_stops_nothing_is_said_to_stop_nothing(filtered: Path) -> None:
    """A part whose programs are missing is not stopped by a filter."""
    found = restrictions([WORKS, NOT_INSTALLED], filtered, filtered)
    assert [one.stops for one in found] == [()] * 4
    assert all("stops no part" in one.sentence and one.remedy not in one.sentence for one in found)
    assert restrictions([FORBIDDEN], filtered / "none", filtered / "none") == []


def test_roots_laboratory_needs_no_user_namespaces(filtered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert restrictions([FORBIDDEN], filtered, filtered)[-1].stops == ()


@pytest.mark.parametrize(
    ("context", "stops"),
    [
        ("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023", ()),
        ("system_u:system_r:container_t:s0:c1,c2", (check._LABORATORY,)),
    ],
)
def test_selinux_stops_only_what_its_policy_confines(filtered: Path, context: str, stops: tuple[str, ...]) -> None:
    (filtered / "self/attr/current").write_text(context)
    (selinux,) = (one for one in restrictions([FORBIDDEN], filtered, filtered) if one.name == "selinux")
    assert selinux.stops == stops and context.split(":")[2] in selinux.fact


@pytest.mark.parametrize(("error", "forbidden"), [(SandboxForbidden("no", ""), True), (MissingError("no", ""), False)])
def test_only_what_the_kernel_refuses_counts_as_forbidden(error: HowfarError, forbidden: bool) -> None:
    def probe() -> str:
        raise error

    assert check._probe_part("x", probe).forbidden is forbidden


def test_what_is_here_is_found_by_name_or_by_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ip" not in [one.name for one in missing_programs(("lab",))], "the tests need it"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("howfar.setup.programs.SYSTEM_DIRECTORIES", ())
    assert {"ip", "mariadbd", "socat"} <= {one.name for one in missing_programs(("lab",))}


def test_the_sidecar_in_the_documents_is_a_command_that_howfar_knows() -> None:
    """That it names its service, and its shared network's interface, was tried in a container."""
    text = (Path(__file__).parents[2] / "docs/compose.yaml").read_text()
    (line,) = (line for line in text.splitlines() if line.strip().startswith("command:"))
    words = [word.strip(' "') for word in line.split("[")[1].rstrip("]").split(",")]
    assert words[0] == "record"
    known = {option for parameter in record.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("document", ["install.md", "limitations.md"])
def test_each_document_names_exactly_the_options_that_the_laboratory_needs(document: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / document).read_text().replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if "--cap-add SYS_ADMIN" in line)
    assert re.findall(r"--(?:cap-add|device) [\w/]+", line) == list(CONTAINER_OPTIONS)
    assert APPARMOR_OPTION in text and "seccomp=unconfined" not in text and "--privileged" not in text
