"""Record this machine, anonymised: `python -m tests.machines.record NAME`.

Command arguments and environments are not read, and the processes that the recording itself
needs are left out. What is kept of a name or a path, and what isn't, stands in anonymous.py.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError
from ccagent.machine.node import Node
from tests.machines.anonymous import Anonymiser, split_stat
from tests.machines.files import write_file, write_machine
from tests.support.paths import MACHINES
from tests.support.recorded import Machine, process_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PLAIN = ("stat", "meminfo", "loadavg", "diskstats", "sys/kernel/pid_max", "sys/kernel/ostype")
_TOPOLOGY = ("physical_package_id", "core_id", "core_cpus_list", "thread_siblings_list")
_KERNEL_THREAD = 0x0020_0000


@dataclass(frozen=True, kw_only=True)
class Found:
    """A process and its files; `io` is None where it can't be read."""

    pid: int
    parent: int
    owner: int
    is_kernel: bool
    state: bytes
    stat: bytes
    statm: bytes
    status: bytes
    cgroup: bytes
    io: bytes | None

    @property
    def kind(self) -> str:
        """What should be there of each in a small recording."""
        if self.state == b"Z":
            return "zombie"
        if self.is_kernel:
            return "kernel"
        return "system" if self.owner == 0 else "user"


def find(node: Node, pid: int) -> Found | None:
    """Read a process; None if it is gone, or if it may not be read at all."""
    base = f"proc/{pid}"
    try:
        stat = node.read(f"{base}/stat")
        fields = split_stat(stat)[2].split()
        return Found(
            pid=pid,
            parent=int(fields[2]),
            owner=node.owner(base),
            is_kernel=bool(int(fields[7]) & _KERNEL_THREAD),
            state=fields[1],
            stat=stat,
            statm=node.read(f"{base}/statm"),
            status=node.read(f"{base}/status"),
            cgroup=node.read(f"{base}/cgroup"),
            io=read_if_there(node, f"{base}/io"),
        )
    except CcagentError:
        return None


def read_if_there(node: Node, path: str) -> bytes | None:
    """Read a file that not every machine has or lets everybody read."""
    try:
        return node.read(path)
    except CcagentError:
        return None


def without_families(
    processes: Iterable[Found], ancestors_of: int | None, roots: Sequence[int]
) -> list[Found]:
    """Leave out `ancestors_of` with its ancestors and children, and the `roots` with theirs.

    The first process of the machine is nobody's own and stays.
    """
    parents = {process.pid: process.parent for process in processes}

    def line(pid: int) -> list[int]:
        found: list[int] = []
        while pid > 1 and pid not in found:
            found.append(pid)
            pid = parents.get(pid, 0)
        return found

    own = set(line(ancestors_of)) if ancestors_of is not None else set[int]()
    heads = {*roots, *([] if ancestors_of is None else [ancestors_of])}
    return [
        process
        for process in processes
        if process.pid not in own and heads.isdisjoint(line(process.pid))
    ]


def a_few(processes: Sequence[Found], number: int) -> list[Found]:
    """Choose about `number` processes, some of each kind, with those they descend from."""
    by_pid = {process.pid: process for process in processes}
    kinds: dict[str, list[Found]] = {}
    for process in processes:
        kinds.setdefault(process.kind, []).append(process)
    chosen: set[int] = set()
    for process in chain.from_iterable(zip_longest(*kinds.values())):
        pid = process.pid if process is not None else 0
        while pid in by_pid and pid not in chosen and len(chosen) < number:
            chosen.add(pid)
            pid = by_pid[pid].parent
    return [process for process in processes if process.pid in chosen]


def record(
    node: Node,
    root: Path,
    *,
    number: int | None = None,
    own_pid: int | None = None,
    leave_out: Sequence[int] = (),
    origin: str,
) -> Machine:
    """Record `node` below `root`, whose name becomes the host's; give its description."""
    anonymiser = Anonymiser(root.name, node.user)
    found = [process for pid in process_ids(node) if (process := find(node, pid)) is not None]
    found = without_families(found, own_pid, leave_out)
    if number is not None:
        found = a_few(found, number)
    owners: dict[str, int] = {}
    for process in found:
        record_process(process, root / "proc" / str(process.pid), anonymiser)
        owners[str(process.pid)] = anonymiser.uid(process.owner)
    record_machine(node, root, anonymiser)
    # Last, so that no process has started later than now.
    machine = Machine(
        origin=origin,
        licence="CC0-1.0",
        hostname=root.name,
        cluster="recorded",
        time=node.clock.time(),
        monotonic=node.clock.monotonic(),
        uptime=node.clock.uptime(),
        clock_ticks=node.clock_ticks,
        page_size=node.page_size,
        users={str(uid): name for uid, name in sorted(anonymiser.users.items()) if name},
        owners=owners,
    )
    write_machine(root, machine)
    return machine


def record_process(process: Found, directory: Path, anonymiser: Anonymiser) -> None:
    """Write the files of one process."""
    before, comm, after = split_stat(process.stat)
    command = anonymiser.command(comm, is_kernel=process.is_kernel)
    write_file(directory / "stat", before + command + after)
    write_file(directory / "statm", process.statm)
    write_file(directory / "status", anonymiser.status(process.status, command))
    write_file(directory / "cgroup", anonymiser.cgroup(process.cgroup))
    if process.io is not None:
        write_file(directory / "io", process.io)


def record_machine(node: Node, root: Path, anonymiser: Anonymiser) -> None:
    """Write the files of the machine as a whole."""

    def copy(path: str) -> None:
        content = read_if_there(node, path)
        if content is not None:
            write_file(root / path, content)

    for name in _PLAIN:
        copy(f"proc/{name}")
    write_file(root / "proc/cpuinfo", anonymiser.cpuinfo(node.read("proc/cpuinfo")))
    release = anonymiser.release(node.read("proc/version")) + b"\n"
    write_file(root / "proc/version", b"Linux version " + release)
    write_file(root / "proc/sys/kernel/osrelease", release)
    copy("proc/sys/kernel/arch")
    cpus, nodes = "sys/devices/system/cpu", "sys/devices/system/node"
    for name in ("online", "possible", "present"):
        copy(f"{cpus}/{name}")
    for cpu in numbered(node, cpus, "cpu"):
        for name in _TOPOLOGY:
            copy(f"{cpus}/{cpu}/topology/{name}")
    copy(f"{nodes}/online")
    for numa_node in numbered(node, nodes, "node"):
        copy(f"{nodes}/{numa_node}/distance")


def numbered(node: Node, directory: str, prefix: str) -> list[str]:
    """The names in a directory that are the prefix and a number; none without the directory."""
    try:
        names = node.list(directory)
    except NotHereError:
        return []
    return sorted(name for name in names if name.removeprefix(prefix).isdecimal())


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the machine that this runs on."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines.record")
    parser.add_argument("name", help="of the recording, and of the host in it")
    parser.add_argument("--processes", type=int, help="about how many to keep; else all")
    parser.add_argument(
        "--leave-out", type=int, action="append", default=[], help="a process with its children"
    )
    parser.add_argument("--origin", default="recorded with tests.machines.record")
    parser.add_argument("--into", type=Path, default=MACHINES, help="directory of the recordings")
    options = parser.parse_args(arguments)
    root: Path = options.into / options.name
    if root.exists():
        parser.error(f"{root} exists")
    record(
        Node(hostname="localhost"),
        root,
        number=options.processes,
        own_pid=os.getpid(),
        leave_out=options.leave_out,
        origin=options.origin,
    )


if __name__ == "__main__":
    main()
