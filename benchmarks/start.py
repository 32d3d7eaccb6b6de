"""Cost of a start: CPU of short commands beside an empty Python, and seconds of an installation.

    python benchmarks/start.py              # installs this checkout into an empty environment
    python benchmarks/start.py --in-place --against ../other-checkout

Commands alternate, so that other load affects all of them. The figures are medians.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).resolve().parent.parent
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
LEFT_OUT = shutil.ignore_patterns(".venv", "build", "*.egg-info", "__pycache__", ".*_cache")
PROCESSES = 100
EMPTY = "python -c pass"
CONFIGURATION = "[agents.sample]\nevery = '1m'\n[sinks.out]\nurl = 'stdout:'\n"


class Case(NamedTuple):
    """A command, and the name of the checkout that provides it."""

    name: str
    place: str
    command: list[str]


def cpu(command: list[str], cache: str) -> float:
    """Return the CPU time of a command in milliseconds, user and kernel.

    cache: directory of bytecode. Python's environment variables are ignored.
    """
    environment = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}
    environment["PYTHONPYCACHEPREFIX"] = cache
    with Path(os.devnull).open("wb") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    return (usage.ru_utime + usage.ru_stime) * 1000


def cases(program: list[str], python: str, place: str, file: Path) -> list[Case]:
    """Return the measured commands. program: the command line of ccagent."""
    completion = ["_CCAGENT_COMPLETE=bash_complete", "COMP_WORDS=ccagent conf", "COMP_CWORD=1"]
    commands = {
        EMPTY: [python, "-c", "pass"],
        "ccagent sample --once": [*program, "sample", "--once"],
        "ccagent sysinfo --once": [*program, "sysinfo", "--once"],
        "ccagent metrics --once": [*program, "metrics", "--once"],
        "sample --once --config": [*program, "sample", "--once", "--config", str(file)],
        "ccagent --version": [*program, "--version"],
        "ccagent --help": [*program, "--help"],
        "ccagent config check": [*program, "config", "check", str(file)],
        "ccagent config defaults": [*program, "config", "defaults"],
        "completion of a command": ["env", *completion, *program],
    }
    return [Case(name, place, command) for name, command in commands.items()]


def measure(found: list[Case], repeats: int, cache: str) -> dict[tuple[str, str], list[float]]:
    """Run all commands alternately, several times. Return the costs of each."""
    spent: dict[tuple[str, str], list[float]] = {(case.name, case.place): [] for case in found}
    for case in found:
        cpu(case.command, cache)  # compiles the imported modules
    for _ in range(repeats):
        for case in found:
            spent[case.name, case.place].append(cpu(case.command, cache))
    return spent


def show(spent: dict[tuple[str, str], list[float]], places: list[str]) -> None:
    """Print medians, absolute and as multiples of an empty Python."""
    names = list(dict.fromkeys(name for name, _ in spent))
    print(f"{'ms CPU, median':26}" + "".join(f"{place:>22}" for place in places))
    for name in names:
        row = f"{name:26}"
        for place in places:
            median = statistics.median(spent[name, place])
            ratio = median / statistics.median(spent[EMPTY, place])
            row += f"{median:12.1f} ({ratio:4.1f} x)"
        print(row)


@contextmanager
def filled(processes: int) -> Generator[None]:
    """Keep at least this number of processes on the machine while the commands run."""
    there = sum(name.isdigit() for name in os.listdir("/proc"))
    sleepers = [subprocess.Popen(["sleep", "1000"]) for _ in range(there, processes)]
    print(f"{max(there, processes)} processes")
    try:
        yield
    finally:
        for sleeper in sleepers:
            sleeper.terminate()
            sleeper.wait()


def in_place(checkout: Path, directory: Path) -> list[str]:
    """Return a program that runs the sources of a checkout like pip's entry script."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["ccagent"].partition(":")
    script = directory / f"ccagent-{checkout.name}"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(checkout / 'src')!r})\n"
        f"from {module} import {function}\nsys.exit({function}())\n"
    )
    return [sys.executable, str(script)]


def install(checkout: Path, directory: Path) -> Path:
    """Build and install a wheel into an empty environment. Print the seconds. Return its Python."""
    source = directory / "source"
    shutil.copytree(checkout, source, symlinks=True, ignore=LEFT_OUT)
    begin = time.monotonic()
    build = [sys.executable, *PIP, "wheel", "--no-deps", f"--wheel-dir={directory}", str(source)]
    subprocess.run(build, check=True, stderr=subprocess.DEVNULL)
    built = time.monotonic()
    environment = directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    made = time.monotonic()
    (wheel,) = directory.glob("*.whl")
    python = environment / "bin/python"
    subprocess.run([python, *PIP, "install", wheel], check=True, stderr=subprocess.DEVNULL)
    end = time.monotonic()
    subprocess.run([python, *PIP, "check"], check=True)
    print(f"wheel built              {built - begin:6.1f} s")
    print(f"empty environment        {made - built:6.1f} s")
    print(f"pip install              {end - made:6.1f} s, pip check clean")
    return python


def main() -> None:
    """Print all measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--in-place", action="store_true", help="install nothing")
    parser.add_argument("--against", type=Path, help="another checkout, measured in turn with this")
    arguments = parser.parse_args()
    checkouts = {"this": ROOT}
    if arguments.against is not None:
        checkouts["other"] = arguments.against.resolve()
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "ccagent.toml"
        file.write_text(CONFIGURATION)
        found: list[Case] = []
        for place, checkout in checkouts.items():
            directory = Path(name) / place
            directory.mkdir()
            if arguments.in_place:
                python, program = sys.executable, in_place(checkout, directory)
            else:
                python = str(install(checkout, directory))
                program = [str(Path(python).with_name("ccagent"))]
            found += cases(program, python, place, file)
        with filled(PROCESSES):
            show(measure(found, arguments.repeats, f"{name}/bytecode"), list(checkouts))


if __name__ == "__main__":
    main()
