"""Processes that real programs put into containers, seen by root and by another user."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ccagent.agents.sonar.jobs.attribution import Containers
from ccagent.machine.node import Node
from tests.support.kernel_programs import NOBODY
from tests.support.running import until


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root directory with one program, `/bin/sleep`."""
    root = tmp_path_factory.mktemp("image")
    for name in ("bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr/bin", "mnt"):
        (root / name).mkdir(parents=True)
    for name in ("etc/hosts", "etc/resolv.conf", "etc/passwd", "etc/group"):
        (root / name).touch()
    shutil.copy("/bin/busybox", root / "bin/sleep")
    return root


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def find_sleeper(process: subprocess.Popen[bytes], seconds: str) -> int:
    """Return the pid of `sleep SECONDS` that descends from a process, or is it."""
    found: list[int] = []

    def is_there() -> bool:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if words[1:2] == [seconds.encode()] and words[0].rpartition(b"/")[2] in NAMES:
                found.append(int(path.parent.name))
        return bool(found)

    until(is_there)
    assert process.poll() is None
    return found[0]


SECONDS = itertools.count(1_000_000 + 1000 * os.getpid())
"""Arguments of `sleep` that no other process has."""

NAMES = (b"sleep", b"starter-suid", b"containerd-shim")


def programs(image: Path, seconds: str) -> dict[str, list[str]]:
    sleep = ["/bin/sleep", seconds]
    return {
        "bwrap image": ["bwrap", "--die-with-parent", "--bind", str(image), "/", *sleep],
        "bwrap machine": [
            "bwrap", "--die-with-parent", "--unshare-user", "--bind", "/", "/", *sleep,
        ],
        "unshare pids": ["unshare", "--fork", "--kill-child", "--pid", *sleep],
        # As enroot does it: namespaces of users and mounts, and another root.
        "unshare root": [
            "unshare", "--user", "--map-root-user", "--mount", "--root", str(image), *sleep,
        ],
        "Charliecloud": ["ch-run", str(image), "--", *sleep],
    }  # fmt: skip


def is_inside(pid: int, *, is_root: bool) -> bool:
    """Look a process up in a child, which may give up its privilege."""
    child = os.fork()
    if not child:
        status = 2
        try:
            if not is_root:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
            status = int(Containers(Node()).is_inside(pid))
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1)
    return bool(status)


@pytest.mark.parametrize("is_root", [True, False])
@pytest.mark.parametrize(
    "program", ["bwrap image", "bwrap machine", "unshare pids", "unshare root", "Charliecloud"]
)
def test_programs_in_containers_are_recognised(
    image: Path, running: list[subprocess.Popen[bytes]], program: str, *, is_root: bool
) -> None:
    seconds = str(next(SECONDS))
    environment = {**os.environ, "USER": "root"}
    running.append(subprocess.Popen(programs(image, seconds)[program], env=environment))
    pid = find_sleeper(running[0], seconds)
    assert is_inside(pid, is_root=is_root)
    os.kill(pid, 9)


@pytest.mark.parametrize("name", ["starter-suid", "containerd-shim"])
@pytest.mark.parametrize("namespace", [[], ["unshare", "--mount"]])
def test_names_and_mounts_of_their_own_are_no_containers(
    tmp_path: Path, running: list[subprocess.Popen[bytes]], name: str, namespace: list[str]
) -> None:
    program, seconds = tmp_path / name, str(next(SECONDS))
    shutil.copy("/bin/sleep", program)
    running.append(subprocess.Popen([*namespace, program, seconds]))
    pid = find_sleeper(running[0], seconds)
    assert not is_inside(pid, is_root=True)
    assert not is_inside(pid, is_root=False)
