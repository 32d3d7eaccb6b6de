"""Packages of Debian's suites and architectures, fetched and unpacked, but not installed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.support.debian_machine import DebianKernel

_MIRROR = "http://deb.debian.org/debian"
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


class DebianArchive:
    """The packages of a suite, by an apt that knows nothing of this machine's."""

    def __init__(self, directory: Path, suite: str, architecture: str = "amd64") -> None:
        self._directory = directory
        for name in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/dpkg",
                     "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):  # fmt: skip
            (directory / name).mkdir(parents=True, exist_ok=True)
        status = directory / "var/lib/dpkg/status"
        status.touch()
        sources = directory / "etc/apt/sources.list"
        sources.write_text(f"deb [signed-by={_KEYS}] {_MIRROR} {suite} main\n")
        settings = {
            "Dir": directory,
            "Dir::State::status": status,
            "Dir::Bin::methods": "/usr/lib/apt/methods",
            "APT::Architecture": architecture,
            "APT::Architectures::": architecture,
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Acquire::Check-Valid-Until": "false",  # of suites that are not updated any more
        }
        self._options = [part for name in settings for part in ("-o", f"{name}={settings[name]}")]
        self._apt("apt-get", "update")

    def depends(self, package: str) -> list[str]:
        """Return the packages that a package needs."""
        return re.findall(r"Depends: ([^\s<]+)", self._apt("apt-cache", "depends", package))

    def unpack(self, packages: list[str], to: Path, *, has_needed: bool = False) -> None:
        """Fetch packages and unpack them. has_needed: also those that they need."""
        kept = self._directory / "var/cache/apt/archives"
        if has_needed:
            self._apt("apt-get", "install", "-y", "--download-only", "--no-install-recommends",
                      *packages)  # fmt: skip
        else:
            self._apt("apt-get", "download", *packages, where=kept)
        for file in kept.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", file, to], check=True)
            file.unlink()

    def _apt(self, program: str, *arguments: str, where: Path | None = None) -> str:
        command = [program, *self._options, *arguments]
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{program} {' '.join(arguments)}: {done.stderr}")
        return done.stdout


def fetch_kernel(archive: DebianArchive, directory: Path, architecture: str) -> DebianKernel:
    """Unpack the kernel of a suite, whose files are in one package or in several."""
    (image,) = (each for each in archive.depends(f"linux-image-{architecture}")
                if each.startswith("linux-image-"))  # fmt: skip
    parts = [each for each in archive.depends(image)
             if re.match(r"linux-(binary|modules)-", each)]  # fmt: skip
    archive.unpack(parts or [image], directory)
    return DebianKernel(directory)
