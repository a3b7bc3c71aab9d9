"""The scripts with which ./release makes a wheel, an image, the list of licences, and runs programs of another architecture."""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import io
import json
import platform
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60
EPOCH = 1_700_000_000
OTHER_MACHINE = "x86_64" if platform.machine() == "aarch64" else "aarch64"


def load(name: str) -> ModuleType:
    """A script of packaging/ as a module. Its folder is no package, since a library of that name exists."""
    spec = importlib.util.spec_from_file_location(f"packaging_{name}", ROOT / "packaging" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- the wheel


def record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}"


def write_wheel(path: Path, files: dict[str, bytes]) -> Path:
    record = "h.dist-info/RECORD"
    lines = [*(record_line(name, content) for name, content in files.items()), f"{record},,"]
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
        wheel.writestr(record, "\n".join(lines) + "\n")
    return path


def test_the_build_directory_leaves_the_sbom_and_the_record_stays_right(tmp_path: Path) -> None:
    sbom = "h.dist-info/sboms/h.cyclonedx.json"
    files = {"h/a.py": b"a = 1\n", sbom: b'{"bom-ref": "path+file:///build/here/crates/wire"}'}
    wheel = write_wheel(tmp_path / "h.whl", files)
    load("wheel").remove_path(wheel, "/build/here")
    with zipfile.ZipFile(wheel) as packed:
        contents = {name: packed.read(name) for name in packed.namelist()}
    assert contents[sbom] == b'{"bom-ref": "path+file:///howfar/crates/wire"}'
    assert contents["h/a.py"] == files["h/a.py"]
    expected = [record_line("h/a.py", contents["h/a.py"]), record_line(sbom, contents[sbom]), "h.dist-info/RECORD,,"]
    assert contents["h.dist-info/RECORD"].decode().splitlines() == expected


def test_a_wheel_with_the_build_directory_in_a_program_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "h.whl", {"h/engine": b"\x7fELF /build/here/src/main.rs"})
    with pytest.raises(ValueError, match="h/engine contains /build/here"):
        load("wheel").remove_path(wheel, "/build/here")


# ---------------------------------------------------------------- the image


def write_layer(path: Path, name: str, content: bytes) -> Path:
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return path


def read_archive(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_an_image_is_an_oci_archive_whose_digests_are_right(tmp_path: Path) -> None:
    layers = [
        write_layer(tmp_path / "base.tar", "bin/sh", b"shell"),
        write_layer(tmp_path / "app.tar", "opt/a", b"app"),
    ]
    archive = tmp_path / "image.oci.tar"
    load("image").pack(archive, "arm64", layers, "1.2.3", EPOCH)
    files = read_archive(archive)

    def blob(descriptor: dict[str, Any]) -> bytes:
        digest = descriptor["digest"].removeprefix("sha256:")
        content = files[f"blobs/sha256/{digest}"]
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (digest, descriptor["size"])
        return content

    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["platform"] == {"architecture": "arm64", "os": "linux"}
    manifest = json.loads(blob(entry))
    config = json.loads(blob(manifest["config"]))
    assert (config["architecture"], config["os"]) == ("arm64", "linux")
    assert config["config"]["Entrypoint"] == ["/opt/howfar/bin/howfar"]
    unpacked = [gzip.decompress(blob(descriptor)) for descriptor in manifest["layers"]]
    assert unpacked == [layer.read_bytes() for layer in layers], "the lowest layer comes first"
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in unpacked]
    assert len(files) == 2 + 2 + len(layers), "no blob without a descriptor"


def test_equal_layers_give_equal_images(tmp_path: Path) -> None:
    layer = write_layer(tmp_path / "base.tar", "bin/sh", b"shell")
    image = load("image")
    for name in ("one", "other"):
        image.pack(tmp_path / name, "amd64", [layer], "1.2.3", EPOCH)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_an_image_has_the_servers_that_setup_would_install() -> None:
    options = load("servers").mmdebstrap_options
    (include,) = options(["--capture"])
    packages = set(include.removeprefix("--include=").split(","))
    assert {"python3", "mariadb-server-core", "tcpdump"} <= packages and "postgresql" not in packages
    include, before, after = options(["--capture", "--postgresql"])
    assert "postgresql" in include.removeprefix("--include=").split(",")
    assert before.startswith("--essential-hook=") and "create_main_cluster = false" in before
    assert after == '--customize-hook=rm "$1/etc/postgresql-common/createcluster.d/howfar.conf"'


def test_an_image_refuses_an_unknown_option_of_setup() -> None:
    with pytest.raises(ValueError, match="--postgres in SETUP"):
        load("servers").mmdebstrap_options(["--postgres"])


# ---------------------------------------------------------------- licences

COPYRIGHT = """Format: copyright-format/1.0
Upstream-Name: rust

Files: C*.md
       library/*
Copyright: 2012 The Rust Project Developers
License: MIT or Apache-2.0

Files: library/core/unicode_data.rs
Copyright: Unicode, Inc
License: Unicode-Data-and-Software

Files:
       vendor/aho-corasick-*/*
       vendor/memchr-*/*
Copyright: Andrew Gallant
License: MIT or Unlicense

Files: src/doc/*
Copyright: another
License: GPL-2+

License: MIT
 Permission is granted.

License: Unicode-Data-and-Software
 Unicode's permission.

License: GPL-2+
 Not of the library.
"""


def test_the_standard_library_has_its_own_copyrights_and_licence_texts_only() -> None:
    selected = load("licences").select_paragraphs(COPYRIGHT, {"memchr"})
    for part in ("The Rust Project Developers", "Andrew Gallant", "Permission is granted", "Unicode's permission"):
        assert part in selected
    assert "GPL" not in selected and "Upstream-Name" not in selected
    assert "Andrew Gallant" not in load("licences").select_paragraphs(COPYRIGHT, {"gimli"})


def test_licence_files_of_a_crate_are_found_under_all_their_names(tmp_path: Path) -> None:
    for name in ("LICENSE-MIT", "license.txt", "COPYING", "NOTICE", "readme.md"):
        (tmp_path / name).write_text(f"{name}\n")
    texts = load("licences").read_licence_texts({"name": "a", "manifest_path": str(tmp_path / "Cargo.toml")})
    assert sorted(texts) == ["COPYING", "LICENSE-MIT", "NOTICE", "license.txt"]


def test_a_library_without_a_licence_text_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    licences = load("licences")
    for name in ("with", "same", "without"):
        (tmp_path / name).mkdir()
        if name != "without":
            (tmp_path / name / "LICENSE").write_text("the text\n")
    packages = [
        {"name": name, "version": "1", "license": "MIT", "source": source, "manifest_path": str(tmp_path / name / "x")}
        for name, source in (("with", "r"), ("same", "r"), ("own", None))
    ]
    monkeypatch.setattr(licences, "linked_packages", lambda: packages)
    monkeypatch.setattr(licences, "read_standard_library_text", lambda: "of Rust")
    monkeypatch.setattr(licences, "read_zig_texts", lambda: {"zig's compiler_rt: MIT": "of zig"})
    assert licences.main() == 0
    printed = capsys.readouterr().out
    assert printed.count("the text") == 1 and "with 1, same 1\n" in printed, "equal texts are printed once"
    assert "of Rust" in printed and "of zig" in printed and "own" not in printed
    packages.append({**packages[0], "name": "without", "manifest_path": str(tmp_path / "without" / "x")})
    assert licences.main() == 1
    assert "without 1 has no licence text" in capsys.readouterr().err


# ---------------------------------------------------------------- programs of another architecture


def elf_header(machine: int, kind: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(9) + kind.to_bytes(2, "little") + machine.to_bytes(2, "little") + bytes(44)


def is_registered_for(line: str, header: bytes) -> bool:
    """Whether the kernel applies this registration to a file that begins with `header`."""
    magic, mask = (bytes.fromhex(field.replace("\\x", "")) for field in line.split(":")[4:6])
    return all(have & use == want & use for have, use, want in zip(header, mask, magic, strict=False))


def test_the_emulator_is_registered_for_programs_of_its_machine_only() -> None:
    registration = load("emulate").registration("aarch64", Path("/tools/qemu"))
    assert registration.endswith(":/tools/qemu:OCF")
    assert is_registered_for(registration, elf_header(0xB7, kind=2)), "a program at a fixed address"
    assert is_registered_for(registration, elf_header(0xB7, kind=3)), "a program at any address"
    assert not is_registered_for(registration, elf_header(0x3E, kind=3)), "x86-64"
    assert not is_registered_for(registration, elf_header(0xB7, kind=1)), "an object file"


def test_root_keeps_all_its_users_and_others_become_root() -> None:
    id_map = load("emulate").id_map
    inside_a_container = "         0     100000      65536\n     70000     200000         10\n"
    assert id_map(inside_a_container, 0, is_root=True) == "0 0 65536\n70000 70000 10\n"
    assert id_map("0 0 4294967295\n", 1000, is_root=False) == "0 1000 1\n"


def emulate(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command where /bin/echo is the emulator of the other machine."""
    script = (sys.executable, ROOT / "packaging" / "emulate.py", OTHER_MACHINE, "/bin/echo")
    return subprocess.run((*script, *command), capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.mark.lab
def test_the_emulator_runs_in_its_namespace_only(tmp_path: Path) -> None:
    done = emulate("true")
    if done.returncode == 125:
        pytest.skip(f"the kernel has no emulators in namespaces: {done.stderr.strip()}")
    program = tmp_path / "program"
    program.write_bytes(elf_header({"aarch64": 0xB7, "x86_64": 0x3E}[OTHER_MACHINE], kind=2))
    program.chmod(0o755)
    assert emulate(program, "one", "two").stdout == f"{program} one two\n"
    with pytest.raises(OSError, match="Exec format error"):
        subprocess.run([program], check=False)


@pytest.mark.lab
@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -TERM $$", 143)])
def test_the_code_of_the_emulated_command_is_passed_on(script: str, code: int) -> None:
    done = emulate("sh", "-c", script)
    if done.returncode == 125:
        pytest.skip(f"the kernel has no emulators in namespaces: {done.stderr.strip()}")
    assert done.returncode == code


def test_an_emulator_that_the_kernel_cannot_register_is_an_error() -> None:
    emulation = load("emulate")
    with pytest.raises(emulation.EmulationError, match="colon"):
        emulation.registration("aarch64", Path("/a:b/qemu"))


def test_an_unknown_argument_of_release_is_refused_before_anything_is_built() -> None:
    done = subprocess.run([ROOT / "release", "arm"], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1 and "unknown argument 'arm'" in done.stderr and "check-aarch64" in done.stderr
