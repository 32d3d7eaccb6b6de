"""Upgrades from a release to the commit after it, with apt and dnf, in roots of their own."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.built_packages import STORES, Built
from tests.support.clean_root import CleanRoot
from tests.support.http_server import Handler, Server, say
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.running import until

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIGURATION = "etc/ccagent/ccagent.toml"
AGENTS = """
[agents.sample]
every = "1s"
[sinks.truth]
url = "dir:/var/lib/ccagent/truth"
[sinks.backend]
url = "http://127.0.0.1:{port}"
"""
BASE_SPEC = """
Name: base
Version: 1
Release: 1
Summary: What the packages need of a distribution
License: MIT
BuildArch: noarch
Provides: /bin/sh /usr/bin/python3.11 libgcc libstdc++
%description
%files
"""
BASE_CONTROL = """Package: base
Version: 1
Architecture: all
Provides: python3.11, libc6 (= 2.36), systemd, libgcc-s1, libstdc++6
Maintainer: x <x@example.org>
Description: what the packages need of a distribution
"""


def add_base_deb(root: CleanRoot) -> None:
    """Install a package that stands for the distribution's."""
    package = root.path / "base"
    (package / "DEBIAN").mkdir(parents=True)
    (package / "DEBIAN/control").write_text(BASE_CONTROL)
    root.run("dpkg-deb", "-Znone", "--build", "/base", "/base.deb")
    root.run("dpkg", "--install", "/base.deb")


def apt_upgrade(root: CleanRoot, packages: Built, names: tuple[str, ...]) -> None:
    """Install packages by their paths, as an administrator does."""
    if not (root.path / "etc/apt").exists():
        root.add_apt()
        add_base_deb(root)
    files = [root.add(packages.deb[name]) for name in names]
    root.run("apt-get", "install", "--yes", *files, DEBIAN_FRONTEND="noninteractive")


def make_base_rpm(root: CleanRoot) -> Path:
    """Build a package that stands for the distribution's."""
    base = root.path / "base/base.rpm"
    base.parent.mkdir()
    (base.parent / "base.spec").write_text(BASE_SPEC)
    subprocess.run(
        ["rpmbuild", "-bb", "--quiet", "--define", f"_topdir {base.parent}",
         "--define", "_rpmfilename base.rpm", base.parent / "base.spec"],
        check=True,
    )  # fmt: skip
    (base.parent / "RPMS/base.rpm").rename(base)
    return base


def dnf(root: CleanRoot, *arguments: str | Path) -> None:
    """Run dnf of this machine; all it changes is the root."""
    subprocess.run(
        ["unshare", "--net", "dnf", f"--installroot={root.path}", "--releasever=9", "--quiet",
         "--disableplugin=*", "--assumeyes", *arguments],
        check=True,
    )  # fmt: skip


def dnf_upgrade(root: CleanRoot, packages: Built, names: tuple[str, ...]) -> None:
    """Install packages by their paths."""
    files = [packages.rpm[name] for name in names]
    if not (root.path / "base").exists():
        files.append(make_base_rpm(root))
    dnf(root, "--setopt=reposdir=/nonexistent", "--nogpgcheck", "install", *files)


def apt_installed(root: CleanRoot, name: str) -> str:
    return root.run("dpkg-query", "--show", "--showformat=${Version}", name)


def dnf_installed(root: CleanRoot, name: str) -> str:
    command = ["rpm", f"--root={root.path}", "-q", "--qf", "%{VERSION}", name]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


UPGRADES = pytest.mark.parametrize(
    ("upgrade", "installed"), [(apt_upgrade, apt_installed), (dnf_upgrade, dnf_installed)]
)


def be_busy(handler: Handler) -> None:
    """Refuse a message for now: it was not received."""
    requests = handler.owner.requests
    client = handler.client_address[:2]
    requests.remove(next(each for each in reversed(requests) if each.client == client))
    say(503)(handler)


@UPGRADES
def test_an_upgrade_loses_no_message_of_a_running_daemon(
    upgrade: Callable[[CleanRoot, Built, tuple[str, ...]], None],
    installed: Callable[[CleanRoot, str], str],
    root: CleanRoot,
    first: Built,
    second: Built,
) -> None:
    names = ("ccagent-core", "ccagent-node")
    upgrade(root, first, names)
    assert re.match(r"1\.0\.0(-1)?$", installed(root, "ccagent-core"))
    port = free_port()
    edited = AGENTS.format(port=port)
    (root.path / CONFIGURATION).write_text(edited)
    (root.path / "run/ccagent").mkdir()  # by the unit's RuntimeDirectory
    root.run("chown", "ccagent:ccagent", "/run/ccagent")

    def told(*command: str) -> str:
        return root.run(*command, "--config", f"/{CONFIGURATION}", user="ccagent")

    def sampled() -> set[str]:
        """The times of all samples that the daemon has sent to the directory."""
        files = (root.path / "var/lib/ccagent/truth").rglob("*.json")
        lines = [line for file in files for line in file.read_text().splitlines()]
        return {json.loads(line)["data"]["attributes"]["time"] for line in lines}

    def times(receiver: Server) -> set[str]:
        bodies = [json.loads(request.body) for request in receiver.requests]
        return {body["data"]["attributes"]["time"] for body in bodies}

    receiver = Server(port=port)
    try:
        receiver.script.extend([be_busy, 204] * 1000)
        daemon = root.start("ccagent", "run", user="ccagent")
        until(lambda: len(times(receiver)) >= 3)
        upgrade(root, second, names)
        version = installed(root, "ccagent-core")
        assert version.startswith("1.0.1~dev1+g")
        before = len(times(receiver))
        until(lambda: len(times(receiver)) >= before + 2)  # the earlier program, until its restart
        receiver.script.extendleft([be_busy] * 1000)
        until(lambda: len(sampled() - times(receiver)) >= 4)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0
        delivered = times(receiver)
        waiting = sampled() - delivered
        queued = re.search(r"^backend +(\d+) ", told("ccagent", "outbox"), re.MULTILINE)
        assert queued is not None
        assert int(queued[1]) == len(waiting)

        receiver.script.clear()
        daemon = root.start("ccagent", "run", user="ccagent")
        until(lambda: len(sampled() - delivered) >= len(waiting) + 2)
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0
        assert times(receiver) == sampled()  # each at least once
    finally:
        receiver.stop()
    print(f"{version}: {len(delivered)} delivered, {len(waiting)} queued of {len(sampled())}")
    assert (root.path / CONFIGURATION).read_text() == edited
    told_version = root.run("ccagent", "--version")
    assert told_version == f"ccagent, version {version.removesuffix('-1').replace('~', '.')}\n"


@UPGRADES
def test_a_newer_program_alone_keeps_the_roles_and_the_store(
    upgrade: Callable[[CleanRoot, Built, tuple[str, ...]], None],
    installed: Callable[[CleanRoot, str], str],
    root: CleanRoot,
    first: Built,
    second: Built,
) -> None:
    upgrade(root, first, ("ccagent-core", "ccagent-node", *STORES))
    upgrade(root, second, ("ccagent-core",))
    assert installed(root, "ccagent-core").startswith("1.0.1~dev1")
    for name in ("ccagent-node", *STORES):
        assert re.match(r"1\.0\.0(-1)?$", installed(root, name))
    assert "listens on" in root.run("ccagent", "store", "metrics", "check", user="ccagent")


def test_a_version_is_built_once(first: Built, source: Path, tmp_path: Path) -> None:
    output = tmp_path / "packages"
    output.mkdir()
    known = output / first.deb["ccagent-slurm"].name
    known.write_bytes(b"another content")
    wheels = str(ROOT / "build/wheels")
    command = ["packaging/build", "deb", "--output", str(output), "--wheels", wheels]
    options = ["--without", "store", "--compression", "gzip", "--python", sys.executable]
    done = subprocess.run(
        [*command, *options], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"{known} exists, with other content" in done.stderr
    assert list(output.iterdir()) == [known]
    assert known.read_bytes() == b"another content"


def test_versions_sort_in_dpkg_and_rpm() -> None:
    ordered = ("1.0.0~dev9+gb", "1.0.0~dev10+ga", "1.0.0", "1.0.1~dev1+gc", "1.0.1", "1.1.0~dev0")
    for earlier, later in itertools.pairwise(ordered):
        compare = ["dpkg", "--compare-versions", f"{earlier}-1", "lt", f"{later}-1"]
        subprocess.run(compare, check=True)
        expression = f'%{{lua:print(rpm.vercmp("{earlier}", "{later}"))}}'
        done = subprocess.run(
            ["rpm", "--eval", expression], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "-1", (earlier, later)
