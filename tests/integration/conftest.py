"""Fixtures of integration tests that more than one directory uses."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority
from tests.support.gpu_libraries import Libraries, compile_libraries
from tests.support.gpu_machine import Machine
from tests.support.http_server import Server
from tests.support.running import Running
from tests.support.tree import TreeNode


def _children() -> set[int]:
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:
            found.update(map(int, file.read().split()))
    return found


_HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    failed_before = report.when != "setup" and item.stash[_HAS_FAILED]
    item.stash[_HAS_FAILED] = report.failed or failed_before
    return report


@pytest.fixture(autouse=True)
def _no_program_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kill what a test that failed has not ended; one that passed may have restarted a server."""
    before = _children()
    yield
    if request.node.stash[_HAS_FAILED]:
        for process in _children() - before:
            os.kill(process, signal.SIGKILL)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Running]:
    """A daemon that a test starts with its own configuration."""
    running = Running(tmp_path)
    yield running
    running.kill()


@pytest.fixture
def server() -> Iterator[Server]:
    """An HTTP server that accepts what it gets."""
    made = Server()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority."""
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def secret(tmp_path: Path) -> Callable[[str], str]:
    """Write a file that only its owner can read."""

    def write(text: str) -> str:
        path = tmp_path / "secret"
        path.write_text(text + "\n")
        path.chmod(0o600)
        return str(path)

    return write


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.fixture(scope="session")
def gpu_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled stand-ins for the vendors' libraries."""
    directory = tmp_path_factory.mktemp("gpu-libraries")
    compile_libraries(directory)
    return directory


@pytest.fixture
def libraries(gpu_libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Libraries:
    """The libraries that processes started from here load, with an empty scenario."""
    libraries = Libraries(gpu_libraries, tmp_path / "scenario")
    libraries.play()
    for name, value in libraries.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ROCM_HOME", raising=False)
    monkeypatch.delenv("ROCM_PATH", raising=False)
    return libraries


@pytest.fixture
def machine(libraries: Libraries, tmp_path: Path) -> Iterator[Machine]:
    """A machine without cards yet."""
    machine = Machine(TreeNode(tmp_path / "machine"), libraries)
    yield machine
    machine.close()
