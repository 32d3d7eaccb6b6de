"""Programs of Debian for arm64, for the emulated machine: unpacked and never installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.debian_archive import DebianArchive
from tests.support.debian_machine import EmulatedSystem
from tests.support.paths import ROOT

_SUITE = "bookworm"
_PACKAGES = [
    "bash", "bindfs", "busybox-static", "coreutils", "dash", "e2fsprogs", "fio", "iproute2", "kmod",
    "libbpf1", "libc-bin", "mount", "nfs-common", "nfs-kernel-server", "passwd", "python3",
    "util-linux",
]  # fmt: skip
_OF_PYTHON = ["click", "msgspec", "psutil"]
_MERGED = ("bin", "sbin", "lib")


def fetch_arm_system(directory: Path) -> EmulatedSystem:
    """Unpack the programs below a directory."""
    archive = DebianArchive(directory / "apt", _SUITE, "arm64")
    root = directory / "root"
    archive.unpack(_PACKAGES, root, has_needed=True)
    for name in _MERGED:  # as the package usrmerge does
        shutil.copytree(root / name, root / "usr" / name, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(root / name)
        (root / name).symlink_to(f"usr/{name}")
    for name in ("dev", "mnt", "proc", "run", "sys", "tmp", "root", "var/lib/nfs"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    packages = directory / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-qq", "--target", packages,
         "--platform", "manylinux2014_aarch64", "--python-version", "3.11",
         "--only-binary=:all:", *_OF_PYTHON],
        check=True, env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )  # fmt: skip
    return EmulatedSystem(
        emulator="qemu-system-aarch64 -M virt -cpu neoverse-n1",
        console="ttyAMA0",
        root=root,
        python="/usr/bin/python3",
        variables={"PYTHONPATH": f"{ROOT}:{ROOT}/src:{packages}"},
    )
