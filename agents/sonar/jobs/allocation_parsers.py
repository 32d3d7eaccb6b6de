"""Parsers for a job's cards in device cgroups, environments and the output of scontrol.

Users can put anything into a job's environment and texts. This affects only their own job.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ccagent.errors import UnparsableError
from ccagent.machine.hostlist import expand

_LARGEST_NUMBER = 255
_MOST_NODES = 100_000

_ENTRY = re.compile(rb"([abc]) ([0-9*]+):([0-9*]+) [rwm]+")
_RANGE = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?", re.ASCII)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,80}", re.ASCII)

# scontrol(1), `-d show job`: `     Nodes=c1-[1-2] CPU_IDs=0-3 Mem=100 GRES=gpu:a100:2(IDX:0-1)`
_DETAIL = re.compile(rb"^ {5}Nodes=(\S+) CPU_IDs=\S* Mem=[0-9]+ GRES=(\S*)$", re.MULTILINE)
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:(,]+)*:[0-9]+\(IDX:([0-9,-]+)\)")

_GLOBAL = (b"SLURM_JOB_GPUS", b"SLURM_STEP_GPUS")
"""slurmd's own numbers, independent of the job's cgroups."""

_VISIBLE = (b"CUDA_VISIBLE_DEVICES", b"ROCR_VISIBLE_DEVICES", b"GPU_DEVICE_ORDINAL")
"""UUIDs, or numbers counted from 0 among the cards that a device cgroup allows."""


class Claim(NamedTuple):
    """Cards by number, uuid or device number (`major:minor`).

    relative: the numbers may count only the job's own cards.
    """

    numbers: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    relative: bool = False


def parse_devices(content: bytes) -> frozenset[str] | None:
    """Return the allowed character devices of devices.list (cgroup v1), as `major:minor`.

    Return None if all devices are allowed by default, as with Slurm's ConstrainDevices: the kernel
    does not list denied devices then (devcgroup_seq_show() in security/device_cgroup.c).
    """
    devices: set[str] = set()
    for line in content.splitlines():
        match = _ENTRY.fullmatch(line.strip())
        if match is None:
            continue
        kind, major, minor = match[1], match[2].decode("ascii"), match[3].decode("ascii")
        if kind == b"a":
            return None
        if kind == b"c":
            devices.add(f"{major}:{minor}")
    return frozenset(devices)


def parse_environment(content: bytes) -> Claim | None:
    """Return the cards that /proc/PID/environ gives the job; None if it names none."""
    variables: dict[bytes, str] = {}
    for entry in content.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and (name in _GLOBAL or name in _VISIBLE):
            variables.setdefault(name, value.decode("ascii", "replace").strip())
    for name in _GLOBAL:
        numbers = parse_numbers(variables.get(name, ""))
        if numbers:
            return Claim(numbers=numbers)
    for name in _VISIBLE:
        words = [word.strip() for word in variables.get(name, "").split(",")]
        if words and all(_UUID.fullmatch(word) for word in words):
            return Claim(uuids=tuple(words))
    for name in _VISIBLE:
        numbers = parse_numbers(variables.get(name, ""))
        if numbers:
            return Claim(numbers=numbers, relative=True)
    return None


def parse_job(content: bytes, names: frozenset[str]) -> Claim | None:
    """Return the job's cards on the node with these names, from `scontrol -d show job N`.

    Return None without such a line, or with several different ones: the job's user wrote one of
    them.
    """
    found: dict[str, str] = {}
    for match in _DETAIL.finditer(content):
        nodes, gres = (part.decode("ascii", "replace") for part in match.groups())
        if found.setdefault(nodes, gres) != gres:
            return None
    here = [gres for nodes, gres in found.items() if names & _short_names(nodes)]
    if not here and len(found) == 1:
        here = [gres for nodes, gres in found.items() if len(_short_names(nodes)) == 1]
    if len(here) != 1:
        return None
    numbers: list[int] = []
    for gpus in _GPUS.finditer(here[0]):
        numbers += parse_numbers(gpus[1])
    return Claim(numbers=tuple(sorted(set(numbers))))


def parse_numbers(text: str) -> tuple[int, ...]:
    """Parse `0`, `0,2` or `0-3,5`; return an empty list for anything else."""
    numbers: set[int] = set()
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            return ()
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last <= _LARGEST_NUMBER:
            return ()
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def short_name(host: str) -> str:
    """Return the first label of a host name, in lower case."""
    return host.partition(".")[0].lower()


def _short_names(nodes: str) -> frozenset[str]:
    try:
        return frozenset(short_name(host) for host in expand(nodes, _MOST_NODES))
    except UnparsableError:
        return frozenset()
