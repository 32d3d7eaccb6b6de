"""Parsers of a job's cards in device cgroups, environments and the output of scontrol.

A user can put anything into the environment and the texts of a job. It affects that job alone.
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
"""slurmd's own numbers, whatever cgroups the job is in."""

_VISIBLE = (b"CUDA_VISIBLE_DEVICES", b"ROCR_VISIBLE_DEVICES", b"GPU_DEVICE_ORDINAL")
"""Uuids, or numbers that count from 0 among what a device cgroup leaves."""


class Claim(NamedTuple):
    """Cards by number, uuid or device number (`major:minor`).

    relative: the numbers may count the job's own cards only.
    """

    numbers: tuple[int, ...] = ()
    uuids: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    relative: bool = False


def parse_devices(content: bytes) -> frozenset[str] | None:
    """Parse devices.list (v1): the character devices `major:minor` that are allowed.

    None where all are allowed by default: then the kernel doesn't list those that are denied
    (devcgroup_seq_show() in security/device_cgroup.c), as with Slurm's ConstrainDevices.
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
    """Parse /proc/PID/environ: the cards that the job was given; None if it names none."""
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
    """Parse what `scontrol -d show job N` prints: the job's cards on the node with these names.

    None without such a line, or with several different ones: then the job's user wrote one of them.
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
    """Parse `0`, `0,2`, `0-3,5`; empty for anything else."""
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
    """Return the first part of a host's name, in lower case."""
    return host.partition(".")[0].lower()


def _short_names(nodes: str) -> frozenset[str]:
    try:
        return frozenset(short_name(host) for host in expand(nodes, _MOST_NODES))
    except UnparsableError:
        return frozenset()
