"""The wheel contains the command, the engine and the shipped data, and works without a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import howfar
from howfar.contract.messages import Info
from howfar.errors import MissingError
from tests.rarely import rarely_but

ROOT = Path(__file__).parents[2]
UV = ROOT / ".boot" / "bin" / "uv"
TIMEOUT_S = 900
MAX_MB = 120
"""Maximum size of the base installation, which can query a database, load it, and run the laboratory."""
Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not UV.exists(), reason=".boot/bin/uv is missing, which ./setup installs"),
]


def must(*command: str | Path) -> str:
    """Run a command in the checkout; returns its output."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module", params=rarely_but(("dev",), ("dev", "release")))
def profile(request: pytest.FixtureRequest) -> str:
    """Cargo's profile of the wheel's engine. After each commit a release build takes minutes; howfar refuses a dev build, which it
    would measure itself."""
    return str(request.param)


@pytest.fixture(scope="module")
def installed(profile: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of a fresh environment with nothing but the wheel and its locked dependencies."""
    directory = tmp_path_factory.mktemp("wheel")
    maturin = Path(sys.executable).parent / "maturin"
    # For this machine only: the engine may be linked to libraries of the system, as ./setup links it.
    must(maturin, "build", "--profile", profile, "--locked", "--quiet", "--auditwheel", "skip", "--out", directory)
    (wheel,) = directory.glob("*.whl")
    assert "-py3-none-" in wheel.name, "one wheel for every Python"
    locked = directory / "locked.txt"
    listed = (ROOT / "requirements" / "product.txt").read_text().splitlines()
    locked.write_text("".join(line.removesuffix(" \\") + "\n" for line in listed if "==" in line))
    must(UV, "venv", "-q", "--python", sys.executable, directory / "venv")
    must(UV, "pip", "install", "-q", "-p", directory / "venv" / "bin" / "python", "-c", locked, wheel)
    return directory / "venv" / "bin"


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """A function that runs an installed program in another directory and without variables of this checkout."""

    def run_installed(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        clean = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
        return subprocess.run(
            [installed / program, *arguments], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=170
        )

    return run_installed


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
@pytest.mark.parametrize("version", ["3.11", "3.14"])
def test_no_dependency_needs_a_compiler(architecture: str, version: str) -> None:
    """All dependencies have wheels for both architectures, at the oldest glibc and for the oldest and the newest Python."""
    where = ("--python-platform", f"{architecture}-manylinux_2_28", "--python-version", version)
    must(
        UV, "pip", "install", "-q", "--dry-run", "--python", sys.executable, *where, "--only-binary", ":all:",
        "--reinstall", "--extra", "report", "-r", "pyproject.toml",
    )  # fmt: skip


def test_the_command_is_installed(run: Run) -> None:
    done = run("howfar", "--version")
    assert done.returncode == 0, done.stderr
    assert howfar.__version__ in done.stdout


def test_the_engine_is_installed_as_it_was_built(run: Run, profile: str) -> None:
    info = Info.model_validate_json(run("howfar-engine", "info").stdout)
    assert (info.debug, info.version) == (profile == "dev", howfar.__version__)


def test_the_command_finds_its_own_engine_and_plans(run: Run, installed: Path) -> None:
    done = run("python", "-c", "import howfar.engine.process as p; print(p.find_engine())")
    assert done.stdout.strip() == str(installed / "howfar-engine"), done.stderr
    done = run("howfar", "plans")
    assert done.returncode == 0, done.stderr
    assert "paths" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write into what is another user's")
def test_root_leaves_no_bytecode_in_the_installation_of_another_user(installed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(installed.parent, copy, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    script = copy / "bin" / "howfar"
    script.write_text(script.read_text().replace(str(installed.parent), str(copy)))
    must("chown", "-R", "nobody", copy)
    must("env", "-u", "PYTHONPYCACHEPREFIX", script, "plans")
    must("env", "-u", "PYTHONPYCACHEPREFIX", script, "lab", "--server", "none", "--", "true")
    assert not list(copy.rglob("__pycache__"))


def test_all_data_files_are_installed(installed: Path) -> None:
    source = ROOT / "python" / "howfar"
    (package,) = installed.parent.glob("lib/python3*/site-packages/howfar")
    source_files = {os.fspath(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    installed_files = {os.fspath(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert {name for name in source_files - installed_files if "__pycache__" not in name} == set()


def test_the_base_installation_is_small_and_works_without_extras(run: Run, installed: Path, profile: str) -> None:
    (packages,) = installed.parent.glob("lib/python3*/site-packages")
    assert {path.name for path in packages.iterdir()} & {"altair", "scipy", "vl_convert", "ray"} == set()
    size = sum(path.stat().st_size for path in installed.parent.rglob("*") if path.is_file() and not path.is_symlink())
    assert size < MAX_MB * 1_000_000, f"{size / 1e6:.0f} MB"
    done = run("howfar", "report", "--example", "--html")
    assert done.returncode == 0 and "extra `report`" in done.stderr, done.stderr
    done = run("howfar", "setup", "--check")
    assert done.returncode == (MissingError.exit_code if profile == "dev" else 0), done.stdout
    shown = " ".join(done.stdout.split())
    assert "not installed: Altair" in shown, shown
    assert ("was built without optimisation" in shown) == (profile == "dev"), shown
