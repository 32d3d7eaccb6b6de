"""Cost of the migration framework beside libvirt's: time of a migration, memory, CPU when idle.

    python benchmarks/migfra.py [--migrations 20] [--idle 20]

Starts two unprivileged libvirt daemons with a guest without KVM, a broker, and a framework on each
host, then migrates the guest there and back, live and warm in turns. Own share: time above that of
libvirt's call, in the service (the phases of the result) and as the scheduler sees it, with the
broker, two records on disk, and the question to the other host. As root: the daemons run as nobody.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from tests.integration.machines.conftest import FrameworkProcess, MachineSite


def read_process(framework: FrameworkProcess, file: str) -> str:
    """Return a file of the process of a service."""
    process = framework.process.pid if framework.process is not None else 0
    return Path(f"/proc/{process}/{file}").read_text(encoding="ascii")


def memory(framework: FrameworkProcess) -> float:
    """Return the resident memory of a service in MiB."""
    status = read_process(framework, "status")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def cpu_time(framework: FrameworkProcess) -> float:
    """Return the CPU time of a service in seconds."""
    return sum(map(int, read_process(framework, "stat").rpartition(")")[2].split()[11:13])) / 100


def migrate(site: MachineSite, source: str, target: str, kind: str) -> tuple[float, float]:
    """Migrate the guest; return the own share in ms, in the service and at the scheduler."""
    begin = time.monotonic()
    task = site.scheduler.migrate(source, "vm-1", target, migration_type=kind)
    answer = site.scheduler.answer(task)
    if answer["status"] != "success":
        raise SystemExit(f"the migration failed: {answer['details']}")
    arrived = next(each[2] for each in site.scheduler.results if each[1].get("id") == task)
    seconds = {tag: float(value) for tag, value in answer["time-measurement"].items()}
    whole = arrived - begin
    return 1000 * (seconds["overall"] - seconds["migrate"]), 1000 * (whole - seconds["migrate"])


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--migrations", type=int, default=20)
    parser.add_argument("--idle", type=float, default=20.0, metavar="SECONDS")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        site = MachineSite(Path(directory))
        try:
            measure(site, options.migrations, options.idle)
        finally:
            site.stop()


def measure(site: MachineSite, migrations: int, idle: float) -> None:
    """Print memory and CPU time before, and after the migrations."""
    for framework in site.frameworks:
        framework.start()
    first = site.frameworks[0]
    print(f"before the first task: {memory(first):.1f} MiB")
    site.run("vm-1")
    shares: list[tuple[float, float]] = []
    for number in range(migrations):
        hosts = ("s1", "s2") if number % 2 == 0 else ("s2", "s1")
        shares.append(migrate(site, *hosts, ("live", "warm")[number // 2 % 2]))
        if number == 0:
            print(f"after the first migration: {memory(first):.1f} MiB")
    print(f"after {migrations} migrations: {memory(first):.1f} MiB")
    places = ("in the service", "at the scheduler")
    for place, values in zip(places, zip(*shares, strict=True), strict=True):
        print(
            f"own share {place}: median {statistics.median(values):.0f} ms, {min(values):.0f} to"
            f" {max(values):.0f} ms"
        )
    before = cpu_time(first)
    time.sleep(idle)
    used = cpu_time(first) - before
    print(f"idle for {idle:g} s: {used:.2f} s of CPU, {memory(first):.1f} MiB")


if __name__ == "__main__":
    main()
