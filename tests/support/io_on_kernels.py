"""Loads all programs on kernels of Debian's suites in emulated machines, and compares.

    python -m tests.support.io_on_kernels bullseye trixie sid trixie/arm64

Prints a line for each comparison, `equal` or what differs, and the values that are not counted.
The exit status is 1 if anything differs. With HYPOTHESIS_PROFILE=nightly all programs run on all
file systems. Needs apt, those programs that tests/integration/kernel needs, and for arm64 pip and
qemu-system-aarch64 (Debian's package qemu-system-arm).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.arm_system import fetch_arm_system
from tests.support.debian_archive import DebianArchive, fetch_kernel
from tests.support.debian_machine import THIS_SYSTEM, run_in_machine
from tests.support.io_comparisons import Result, differences

_CLOSE = 0.02
"""Share by which CPU time of ended processes may differ from the control group's."""


def run(suite: str, architecture: str, directory: Path) -> Result:
    """Run everything on the kernel of a suite."""
    archive = DebianArchive(directory / "apt", suite, architecture)
    kernel = fetch_kernel(archive, directory / "kernel", architecture)
    system = fetch_arm_system(directory / "system") if architecture == "arm64" else THIS_SYSTEM
    output = run_in_machine(
        kernel, directory, "tests.support.kernel_scenarios", system=system, time_limit=1800
    )
    (line,) = [line for line in output.splitlines() if line.startswith("{")]
    found: Result = json.loads(line)
    return found


def judge(results: Result) -> Iterator[tuple[str, str]]:
    """Yield each comparison and what differs, empty if all is equal."""
    loaded = results["load"]
    yield "load", "" if not loaded["status"] and not loaded["said"] else str(loaded["said"])
    if "tasks" in results:
        found = results["tasks"]
        yield f"tasks: {found.get('processes')} processes", _text(found.get("differences", found))
    for version in ("v1", "v2"):
        if f"ended {version}" in results:
            yield _judge_ended(f"ended {version}", results[f"ended {version}"])
    for name, found in results.get("io", {}).items():
        if name == "lost":
            yield "lost", str(found or "")
        elif name == "many talkers":
            yield name, _text(differences("network udp", found.get("other", found)))
        else:
            yield name, _text(differences(name, found))


def _judge_ended(name: str, found: Result) -> tuple[str, str]:
    if "error" in found:
        return name, found["error"]
    name += f": {found['processes']} of {found['expected processes']} processes"
    share = found["counted"] / found["used"]
    is_close = abs(share - found["processes"] / found["expected processes"]) <= _CLOSE
    return name, "" if is_close else f"{share:.4f} of the control group's CPU time"


def _text(differing: Result) -> str:
    return ", ".join(
        f"{name}: {values}" if isinstance(values, str) else f"{name}: {values[1]}, not {values[0]}"
        for name, values in differing.items()
    )


def main() -> None:
    """Print the results for each kernel that is named."""
    is_equal = True
    for name in sys.argv[1:]:
        suite, _, architecture = name.partition("/")
        with tempfile.TemporaryDirectory(prefix="ccagent-kernel-") as directory:
            results = run(suite, architecture or "amd64", Path(directory))
        print(f"{name}: Linux {results['release']}")
        for comparison, differing in judge(results):
            print(f"  {comparison}: {differing or 'equal'}")
            is_equal = is_equal and not differing
        if results.get("missed"):
            print(f"  {results['missed']} calls, at most, that the kernel skipped all programs for")
        for line in results.get("load io", {}).get("said", ()):
            print(f"  {line}")
        sys.stdout.flush()
    sys.exit(not is_equal)


if __name__ == "__main__":
    main()
