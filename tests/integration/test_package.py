"""What `pip install .` puts where."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of a clean copy of the sources."""
    directory = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, directory / "source", symlinks=True, ignore=LEFT_OUT)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--wheel-dir", str(directory), str(directory / "source")],
        check=True,
    )  # fmt: skip
    (built,) = directory.glob("ccagent-*.whl")
    return zipfile.ZipFile(built)


def test_agents_and_transports_are_inside_the_package_and_nowhere_else(
    wheel: zipfile.ZipFile,
) -> None:
    names = wheel.namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"ccagent"}
    assert "ccagent/agents/sonar/procfs.py" in names
    assert "ccagent/agents/sysinfo/agent.py" in names
    assert "ccagent/transports/http/transport.py" in names
    assert "ccagent/py.typed" in names
    for name in ("tasks.bpf.o", "ended.bpf.o", "tasks.bpf.c", "kernel.bpf.h", "README.md"):
        assert f"ccagent/agents/sonar/kernel/{name}" in names


def test_all_modules_are_in_it(wheel: zipfile.ZipFile) -> None:
    ours = {
        f"ccagent/{path.relative_to(ROOT / 'src/ccagent').as_posix()}"
        for path in (ROOT / "src/ccagent").rglob("*.py")
    } | {
        f"ccagent/{path.relative_to(ROOT).as_posix()}"
        for folder in ("agents", "transports")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name for name in wheel.namelist() if name.endswith(".py")} == ours
