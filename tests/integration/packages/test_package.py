"""What `pip install .` puts where."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.built_packages import commit_change, tagged_tree
from tests.support.paths import ROOMS, ROOT

PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a clean copy of the sources, made of a source distribution of a checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    source = tagged_tree(directory / "source")
    commit_change(source)
    tools = directory / "tools"
    python = [sys.executable]
    target = ("--no-compile", "--target", tools)
    subprocess.run([*python, *PIP, "install", *target, "setuptools>=77"], check=True)
    environment = os.environ | {"PYTHONPATH": str(tools)}
    program = "import setuptools.build_meta as b; b.build_sdist('..')"
    subprocess.run(
        [*python, "-c", program], cwd=source, env=environment, check=True, capture_output=True
    )
    (sdist,) = directory.glob("ccagent_collectors-*.tar.gz")
    subprocess.run(
        [*python, *PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", directory,
         sdist], env=environment, check=True,
    )  # fmt: skip
    (found,) = directory.glob("ccagent_collectors-*.whl")
    return found


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def installed(built: Path) -> Path:
    """The directory of programs of an empty environment into which the wheel was installed."""
    environment = built.parent / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    pip = [sys.executable, *PIP, "--python", str(environment / "bin/python")]
    subprocess.run([*pip, "install", "--no-compile", built], check=True)
    return environment / "bin"


def test_agents_and_transports_are_inside_the_package_and_nowhere_else(
    wheel: zipfile.ZipFile,
) -> None:
    names = wheel.namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {
        "ccagent",
        "ccagent_collectors",
    }
    assert "ccagent/agents/sonar/sources/procfs.py" in names
    assert "ccagent/agents/sysinfo/agent.py" in names
    assert "ccagent/transports/http.py" in names
    assert "ccagent/py.typed" in names
    for name in ("tasks.bpf.o", "ended.bpf.o", "tasks.bpf.c", "kernel.bpf.h", "README.md"):
        assert f"ccagent/machine/bpf/{name}" in names


def test_all_modules_are_in_it(wheel: zipfile.ZipFile) -> None:
    ours = {
        f"ccagent/{path.relative_to(ROOT / 'src/ccagent').as_posix()}"
        for path in (ROOT / "src/ccagent").rglob("*.py")
    } | {
        f"ccagent/{path.relative_to(ROOT).as_posix()}"
        for folder in ROOMS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {name for name in wheel.namelist() if name.endswith(".py")} == ours


def test_what_is_no_module_is_in_it_too(wheel: zipfile.ZipFile) -> None:
    data = {
        f"ccagent/{path.relative_to(above).as_posix()}"
        for above, folder in (
            *((ROOT, room) for room in ROOMS),
            (ROOT / "src/ccagent", "machine"),
        )
        for path in (above / folder).rglob("*.*")
        if path.suffix not in {".py", ".pyc", ".md", ".png"}  # documents and their pictures
    }  # fmt: skip
    # The sources of the kernel's programs, and their licence.
    data.add("ccagent/machine/bpf/README.md")
    # Of modules, which are in it if they are compiled.
    data -= {f"ccagent/stores/metrics/{name}.c" for name in ("line_scanner", "largest_triangles")}
    assert "ccagent/agents/metrics/perf/events/intel_skylake_sp.toml" in data
    packaged = {name for name in wheel.namelist() if name.startswith("ccagent/")}
    assert {name for name in packaged if not name.endswith(".py")} == data | {
        "ccagent/py.typed",
    }


def test_the_source_distribution_is_the_checkout(built: Path) -> None:
    """So its documents have their links, and its tests run."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=built.parent / "source", capture_output=True, text=True, check=True
    )
    (sdist,) = built.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = set(tracked.stdout.splitlines()) - names
    assert {name for name in missing if not name.startswith(".ci/")} == set()


def test_its_requirements_agree(installed: Path) -> None:
    subprocess.run([sys.executable, *PIP, "--python", installed / "python", "check"], check=True)


def test_what_is_installed_runs(installed: Path, tmp_path: Path) -> None:
    def said(*arguments: str | Path) -> str:
        done = subprocess.run(
            [installed / "ccagent", *arguments], cwd=tmp_path, capture_output=True, text=True,
            timeout=60, check=True,
        )  # fmt: skip
        return done.stdout

    assert re.fullmatch(r"ccagent, version 1\.0\.1\.dev1\+g[0-9a-f]{12}\n", said("--version"))
    assert "[agents.sample]" in said("config", "defaults")
    assert said("generate", tmp_path / "generated").count("\n") == 6
    assert said("sample", "--once").startswith("{")
