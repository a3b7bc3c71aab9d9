"""What ./release publishes: a source that builds offline, the same bytes in every directory, packages, images (`./test release`)."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import howfar
from howfar.lab.sandbox import namespace_flags

ROOT = Path(__file__).parents[2]
RELEASE = ROOT / ".boot" / "release"
TIMEOUT_S = 1500
ENGINE = "howfar-engine"
GLIBC = (2, 28)
PLATFORM = f"manylinux_{GLIBC[0]}_{GLIBC[1]}"
MAX_IMAGE_MB = 500
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}

pytestmark = [pytest.mark.release, pytest.mark.timeout(2 * TIMEOUT_S)]


def must(folder: Path, *command: str | Path) -> str:
    """Run a command in a folder; returns its output."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_source_builds_without_a_network(tmp_path: Path) -> None:
    """The source builds from vendored crates, in a network namespace whose only interface is a loopback that is down."""
    maturin = Path(sys.executable).parent / "maturin"
    must(ROOT, maturin, "sdist", "--out", tmp_path)
    (archive,) = tmp_path.glob("*.tar.gz")
    must(tmp_path, "tar", "-xf", archive)
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    settings = must(source, "cargo", "vendor", "--locked", "--quiet", tmp_path / "vendor")
    (source / ".cargo").mkdir(exist_ok=True)
    with (source / ".cargo" / "config.toml").open("a") as file:
        file.write(settings)
    build = (maturin, "build", "--release", "--locked", "--offline", "--quiet", "--out", tmp_path / "wheel")
    must(source, "env", "-u", "ZSTD_SYS_USE_PKG_CONFIG", "unshare", *namespace_flags(), "--", *build)
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed_wheel:
        names = packed_wheel.namelist()
    assert any(name.endswith(f"/{ENGINE}") for name in names) and "howfar/cli/main.py" in names


def release(checkout: Path, *targets: str, architecture: str = "") -> Path:
    """Run ./release in a checkout; returns the directory of what it made."""
    must(checkout, "env", *([f"ARCHITECTURES={architecture}"] if architecture else []), "./release", *targets)
    return checkout / "dist"


def clone(checkout: Path) -> Path:
    """A clone of the commit, with the tools that ./release fetched here."""
    if not (RELEASE / "rust" / "complete").exists():
        pytest.skip("./release has not run here, so its tools are missing")
    must(ROOT, "git", "clone", "--quiet", ROOT, checkout)
    (checkout / ".boot" / "release").mkdir(parents=True)
    (checkout / ".boot" / "bin").symlink_to(ROOT / ".boot" / "bin")
    (checkout / ".venv").symlink_to(ROOT / ".venv")
    for kept in ("tools", "tools.checksum", "rust", "emulator", "mmdebstrap", "libraries-aarch64"):
        if (RELEASE / kept).exists():
            (checkout / ".boot" / "release" / kept).symlink_to(RELEASE / kept)
    return checkout


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout in which ./release made the wheels and the source."""
    checkout = clone(tmp_path_factory.mktemp("release") / "one")
    release(checkout, "x86_64", "aarch64", "source")
    return checkout


def wheel_for(checkout: Path, machine: str) -> zipfile.ZipFile:
    (wheel,) = (checkout / "dist").glob(f"howfar-*-py3-none-{PLATFORM}_{machine}.whl")
    return zipfile.ZipFile(wheel)


def member(wheel: zipfile.ZipFile, ending: str) -> bytes:
    """The only file of the wheel whose name ends so."""
    (name,) = (one for one in wheel.namelist() if one.endswith(ending))
    return wheel.read(name)


def test_the_same_commit_gives_the_same_bytes_in_every_directory(published: Path, tmp_path: Path) -> None:
    again = clone(tmp_path / "another" / "deeper")
    release(again, "x86_64", "aarch64", "source")
    names = sorted(file.name for file in (published / "dist").iterdir() if file.suffix in {".whl", ".gz"})
    digests = [
        {name: hashlib.sha256((checkout / "dist" / name).read_bytes()).hexdigest() for name in names}
        for checkout in (published, again)
    ]
    assert len(names) == 3 and digests[0] == digests[1]


def test_the_checksums_are_right(published: Path) -> None:
    must(published / "dist", "sha256sum", "--check", "--strict", "SHA256SUMS")
    listed = {line.split()[1] for line in (published / "dist" / "SHA256SUMS").read_text().splitlines()}
    assert listed == {file.name for file in (published / "dist").iterdir()} - {"SHA256SUMS"}


@pytest.mark.parametrize(("machine", "elf_name"), [("x86_64", "X86-64"), ("aarch64", "AArch64")])
def test_the_engine_needs_no_newer_glibc_than_the_wheel_says(
    published: Path, tmp_path: Path, machine: str, elf_name: str
) -> None:
    with wheel_for(published, machine) as wheel:
        (tmp_path / ENGINE).write_bytes(member(wheel, f"/scripts/{ENGINE}"))
    assert re.search(rf"Machine:.*{elf_name}", must(tmp_path, "readelf", "--file-header", ENGINE))
    symbols = must(tmp_path, "readelf", "--wide", "--version-info", ENGINE)
    versions = {(int(major), int(minor)) for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)}
    assert versions and max(versions) <= GLIBC, sorted(versions)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_wheel_lists_its_crates_and_their_licences(published: Path, machine: str) -> None:
    with wheel_for(published, machine) as wheel:
        sbom = json.loads(member(wheel, ".cyclonedx.json"))
        licences = member(wheel, "/THIRD-PARTY-LICENCES.txt").decode()
        assert member(wheel, "/share/doc/howfar/docs/load.md") and member(wheel, "/share/doc/howfar/schema/report.json")
    assert sbom["bomFormat"] == "CycloneDX"
    assert str(published) not in json.dumps(sbom), "the path of a build"
    components = {(one["name"], one["version"]) for one in sbom["components"]}
    linked = re.findall(r"^  (\S+) (\d\S*): ", licences.partition("=" * 78)[0], re.MULTILINE)
    assert ("rustls", "0.23") in {(name, version[:4]) for name, version in linked}
    assert set(linked) <= components, sorted(set(linked) - components)
    for text in ("The Rust Project Developers", "The libunwind library is dual licensed"):
        assert text in licences


def unpack_image(checkout: Path, debian_name: str, root: Path) -> None:
    """The root file system of an image, with its files' owners, so as root."""
    (archive,) = (checkout / "dist").glob(f"howfar-*-{debian_name}.oci.tar")
    blobs = root.with_suffix(".blobs")
    for folder in (root, blobs):
        folder.mkdir()
    must(blobs, "tar", "-xf", archive)
    (entry,) = json.loads((blobs / "index.json").read_text())["manifests"]
    manifest = json.loads((blobs / "blobs" / entry["digest"].replace(":", "/")).read_text())
    for layer in manifest["layers"]:
        must(root, "tar", "-xpf", blobs / "blobs" / layer["digest"].replace(":", "/"))
    shutil.rmtree(blobs)


def list_files(root: Path) -> set[str]:
    """All files and directories, without what dpkg, as on every system, notes about packages."""
    output = must(
        root, "find", ".", "-path", "./var/lib/dpkg", "-prune", "-o", "-path", "./var/log", "-prune", "-o", "-print"
    )
    return set(output.splitlines())


def without_network(root: Path, *command: str) -> str:
    """Run a command in a root directory, without a network and without the variables of this process."""
    environment = ("env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return must(Path("/"), "unshare", "--net", "--mount", "chroot", root, *environment, *command)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a root directory is entered as root only")


@pytest.fixture(scope="module")
def image_root(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root file system of this machine's image."""
    machine = platform.machine()
    release(published, "image", architecture=machine)
    root = tmp_path_factory.mktemp("image") / "root"
    unpack_image(published, DEBIAN_NAMES[machine], root)
    return root


def check_image(root: Path) -> None:
    """Its size, and that each package's licence is there without its other documents."""
    size_kib = int(must(root, "du", "-sk", "--apparent-size", ".").split()[0])
    assert size_kib * 1024 <= MAX_IMAGE_MB * 1_000_000, f"{size_kib / 1000:.0f} MB"
    # A package may share the folder of another one.
    packages = {path.stem.partition(":")[0] for path in (root / "var/lib/dpkg/info").glob("*.list")}
    assert {name for name in packages if not (root / "usr/share/doc" / name / "copyright").exists()} == set()
    names = {path.name for path in (root / "usr/share/doc").glob("*/*") if path.is_file()}
    assert names == {"copyright", "THIRD-PARTY-LICENCES.txt"}


@needs_root
def test_the_image_is_small_and_works_without_a_network(image_root: Path) -> None:
    check_image(image_root)
    versions = without_network(image_root, "/opt/howfar/bin/howfar", "--version")
    assert howfar.__version__ in versions and versions.endswith("docs   /usr/share/doc/howfar\n")


@needs_root
def test_the_image_of_the_other_architecture_works_under_emulation(published: Path, tmp_path: Path) -> None:
    machine = "x86_64" if platform.machine() == "aarch64" else "aarch64"
    emulator = published / ".boot" / "release" / "emulator" / f"qemu-{machine}"
    release(published, "image", architecture=machine)
    unpack_image(published, DEBIAN_NAMES[machine], tmp_path / "root")
    check_image(tmp_path / "root")
    emulate = (sys.executable, ROOT / "packaging" / "emulate.py", machine, emulator)
    command = ("chroot", tmp_path / "root", "/opt/howfar/bin/howfar", "--version")
    assert howfar.__version__ in must(ROOT, *(emulate if emulator.exists() else ()), *command)


@needs_root
def test_the_debian_package_is_removed_without_a_trace(published: Path, image_root: Path) -> None:
    debian_name = DEBIAN_NAMES[platform.machine()]
    (package,) = release(published, "deb", architecture=platform.machine()).glob(f"howfar_*_{debian_name}.deb")
    shutil.rmtree(image_root / "usr/share/doc/howfar")  # the image's own copies of the same files
    shutil.copy(package, image_root / "howfar.deb")
    before = list_files(image_root)
    without_network(image_root, "dpkg", "--install", "/howfar.deb")
    versions = without_network(image_root, "/usr/bin/howfar", "--version")
    assert howfar.__version__ in versions and versions.endswith("docs   /usr/share/doc/howfar\n")
    installed = list_files(image_root) - before
    for name in (
        "./usr/bin/howfar", "./usr/lib/howfar/bin/howfar-engine", "./usr/share/doc/howfar/copyright",
        "./usr/share/doc/howfar/THIRD-PARTY-LICENCES.txt", "./usr/share/doc/howfar/docs/load.md",
        "./usr/share/bash-completion/completions/howfar",
        "./usr/share/zsh/vendor-completions/_howfar", "./usr/share/fish/vendor_completions.d/howfar.fish",
    ):  # fmt: skip
        assert name in installed
    without_network(image_root, "dpkg", "--purge", "howfar")
    after = list_files(image_root)
    assert (after - before, before - after) == (set(), set())
    listed = must(published, "dpkg-deb", "--contents", package)
    assert "./usr/share/man/man1/howfar.1.gz" in listed, "the image's dpkg leaves man pages out"


def test_the_engine_passes_its_tests_on_aarch64(published: Path) -> None:
    release(published, "check-aarch64")
