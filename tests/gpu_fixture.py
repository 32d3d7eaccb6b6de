"""The makers' libraries as stand-ins: `pytest_plugins = ["tests.gpu_fixture"]`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu_libraries import Libraries, compile_libraries
from tests.gpu_machine import Machine
from tests.tree import TreeNode


@pytest.fixture(scope="session")
def gpu_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled libraries."""
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
