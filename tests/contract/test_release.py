"""./release publishes source that builds without a network, and each build gives the same bytes in any directory."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from howfar.lab.sandbox import namespace_flags

ROOT = Path(__file__).parents[2]
RELEASE = ROOT / ".boot" / "release"
TIMEOUT_S = 1500
ENGINE = "howfar-engine"

pytestmark = [pytest.mark.thorough, pytest.mark.slow, pytest.mark.timeout(2 * TIMEOUT_S)]


def must(folder: Path, *command: str | Path) -> str:
    """Run a command in a folder; returns its output."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.lab
def test_the_source_builds_without_a_network(tmp_path: Path) -> None:
    """The source builds from vendored crates, in a network namespace whose only interface is a loopback that is down."""
    maturin = Path(sys.executable).parent / "maturin"
    must(ROOT, maturin, "sdist", "--out", tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    settings = must(source, "cargo", "vendor", "--locked", "--quiet", tmp_path / "vendor")
    (source / ".cargo").mkdir(exist_ok=True)
    with (source / ".cargo" / "config.toml").open("a") as file:
        file.write(settings)
    build = (maturin, "build", "--release", "--locked", "--offline", "--quiet", "--out", tmp_path / "wheel")
    must(source, "unshare", *namespace_flags(), "--", *build)
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed_wheel:
        names = packed_wheel.namelist()
    assert any(name.endswith(f"/{ENGINE}") for name in names) and "howfar/cli/main.py" in names


@pytest.mark.skipif(
    not (RELEASE / "rust" / "complete").exists(), reason="./release has not run here, so its tools are missing"
)
def test_the_same_commit_gives_the_same_bytes_in_every_directory(tmp_path: Path) -> None:
    digests = []
    for checkout in (tmp_path / "one", tmp_path / "another" / "deeper"):
        must(ROOT, "git", "clone", "--quiet", ROOT, checkout)
        (checkout / ".boot" / "release").mkdir(parents=True)
        (checkout / ".boot" / "bin").symlink_to(ROOT / ".boot" / "bin")
        (checkout / ".venv").symlink_to(ROOT / ".venv")
        for kept in ("tools", "tools.checksum", "rust"):
            (checkout / ".boot" / "release" / kept).symlink_to(RELEASE / kept)
        must(checkout, "./release", "x86_64", "source")
        (checkout / "dist" / "SHA256SUMS").unlink()
        digests.append(
            {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (checkout / "dist").iterdir()}
        )
        shutil.rmtree(checkout)
    assert len(digests[0]) == 2 and digests[0] == digests[1]
