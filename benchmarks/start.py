"""What it costs to begin: CPU of short commands, and seconds that an installation takes."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def cpu(command: list[str], repeats: int) -> float:
    """Give the least CPU time of a command in milliseconds, user and kernel."""
    spent: list[float] = []
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(spent) * 1000


def commands(program: str, repeats: int) -> None:
    """Print what short commands cost, beside an interpreter that does nothing."""
    python = str(Path(program).with_name("python"))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "ccagent.toml"
        file.write_text("[agents.sample]\nevery = '1m'\n[sinks.out]\nurl = 'stdout:'\n")
        cases = {
            "python -c pass": [python, "-c", "pass"],
            "ccagent --version": [program, "--version"],
            "ccagent --help": [program, "--help"],
            "ccagent config check": [program, "config", "check", str(file)],
            "ccagent config defaults": [program, "config", "defaults"],
            "completion of a command": [
                "env", "_CCAGENT_COMPLETE=bash_complete", "COMP_WORDS=ccagent conf", "COMP_CWORD=1",
                program,
            ],
        }  # fmt: skip
        for name, command in cases.items():
            print(f"{name:24} {cpu(command, repeats):6.0f} ms CPU")


def install(directory: Path) -> str:
    """Build a wheel, install it into an empty environment, print the seconds; give its program."""
    begin = time.monotonic()
    subprocess.run(
        [sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", directory, ROOT], check=True
    )
    built = time.monotonic()
    environment = directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    made = time.monotonic()
    (wheel,) = directory.glob("*.whl")
    subprocess.run([environment / "bin/python", *PIP, "install", wheel], check=True)
    end = time.monotonic()
    subprocess.run([environment / "bin/python", *PIP, "check"], check=True)
    print(f"wheel built              {built - begin:6.1f} s")
    print(f"empty environment        {made - built:6.1f} s")
    print(f"pip install              {end - made:6.1f} s, pip check clean")
    return str(environment / "bin/ccagent")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        commands(install(Path(directory)), arguments.repeats)


if __name__ == "__main__":
    main()
