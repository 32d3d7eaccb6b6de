"""Cards that Slurm has allocated to jobs on this node, used or not.

Users can put anything into a job's environment and texts. This affects only their own job.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, UnparsableError
from ccagent.machine.cgroup.jobs import known_directories
from ccagent.machine.hostlist import expand
from ccagent.machine.procfs.process_files import parse_environ
from ccagent.machine.slurm_environment import run_slurm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.machine.gpu.gpus import GpuReading
    from ccagent.machine.node import Node

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

_V1 = ("devices", "memory", "freezer", "cpuset", "cpuacct")
_NVIDIA, _RENDER = "195:{}", "226:{}"
_FIRST_RENDER = 128
_ASKED_PROCESSES = 4
_ASKED_JOBS = 4
_TIME_LIMIT = 5.0
_OUTPUT_LIMIT = 1 << 20
_RETRY = 600.0
_DRIVER_UID = 0

ProcessOfJob = tuple[int, int, int]
"""Pid, job id (0: none) and user id of a process."""


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
    variables = {
        name: value.decode("ascii", "replace").strip()
        for name, value in parse_environ(content, _GLOBAL + _VISIBLE).items()
    }
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
    by_nodes: dict[str, str] = {}
    for match in _DETAIL.finditer(content):
        nodes, gres = (group.decode("ascii", "replace") for group in match.groups())
        if by_nodes.setdefault(nodes, gres) != gres:
            return None
    here = [gres for nodes, gres in by_nodes.items() if names & _short_names(nodes)]
    if not here and len(by_nodes) == 1:
        here = [gres for nodes, gres in by_nodes.items() if len(_short_names(nodes)) == 1]
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


class Allocation(NamedTuple):
    """The indices of the cards of a job. uid: -1 if unknown."""

    job: int
    uid: int
    cards: tuple[int, ...]


class _JobHere(NamedTuple):
    """A job on this node: uid (-1: unknown), device cgroup directory, slurmd, processes."""

    uid: int
    devices: str
    slurmd: str
    pids: list[int]


class Allocations:
    """Allocations, read once for each job. Slurm's programs run only if the node has no source."""

    def __init__(self, scontrol: str, squeue: str) -> None:
        self._scontrol = scontrol
        self._squeue = squeue
        self._known: dict[int, Allocation] = {}
        self._not_before: dict[int, float] = {}
        self._slurm_not_before = 0.0

    def read(
        self, node: Node, processes: Sequence[ProcessOfJob], reading: GpuReading
    ) -> list[Allocation]:
        """Return the allocations of the jobs on this node that have cards."""
        jobs = _jobs(node, processes)
        self._known = {job: known for job, known in self._known.items() if job in jobs}
        self._not_before = {job: at for job, at in self._not_before.items() if job in jobs}
        now = node.clock.monotonic()
        questions = _ASKED_JOBS
        for number, job in jobs.items():
            if number in self._known or self._not_before.get(number, 0.0) > now:
                continue
            claim = _cgroup(node, job) or _environment(node, job)
            if claim is None or claim.relative:
                if not questions:
                    continue
                questions -= 1
                claim = self._ask(node, number, job) or claim
            if claim is None:
                self._not_before[number] = now + _RETRY
                continue
            uid = job.uid if job.uid >= 0 else self._owner(node, number)
            self._known[number] = Allocation(number, uid, _cards(claim, reading))
        return [known for known in self._known.values() if known.cards]

    def _ask(self, node: Node, number: int, job: _JobHere) -> Claim | None:
        names = frozenset({short_name(job.slurmd or node.hostname)})
        content = self._run(node, [self._scontrol, "-d", "show", "job", str(number)])
        return None if content is None else parse_job(content, names)

    def _owner(self, node: Node, number: int) -> int:
        command = [self._squeue, "--noheader", f"--jobs={number}", "--format=%U"]
        content = (self._run(node, command) or b"").strip()
        return int(content) if content.isdigit() else -1

    def _run(self, node: Node, command: list[str]) -> bytes | None:
        """Return the output of a Slurm program. After a failure, pause before the next run."""
        if node.clock.monotonic() < self._slurm_not_before:
            return None
        try:
            return run_slurm(node, command, time_limit=_TIME_LIMIT, output_limit=_OUTPUT_LIMIT)
        except CcagentError:
            self._slurm_not_before = node.clock.monotonic() + _RETRY
            return None


def idle_cards(allocation: Allocation, used: dict[int, float], reading: GpuReading) -> list[int]:
    """Return the cards that a job leaves idle.

    used: utilisation by the job's processes, by card.

    A card without a process of the job is idle. A card whose processes use nothing is idle too,
    unless the card is busy and utilisation by process is unknown. If the card has no utilisation at
    all (MIG instances), a process counts as use. A failing card is not idle.
    """
    idle: list[int] = []
    for card in reading.cards:
        if card.index not in allocation.cards or card.failing or used.get(card.index):
            continue
        is_unknown = card.ce_util or card.index in reading.without_utilization
        if card.index not in used or not is_unknown:
            idle.append(card.index)
    return idle


def _jobs(node: Node, processes: Sequence[ProcessOfJob]) -> dict[int, _JobHere]:
    """Return the jobs with a cgroup or a process on this node."""
    jobs: dict[int, _JobHere] = {}
    for directory in known_directories(node, _V1):
        devices = directory.path if directory.controller == "devices" else ""
        known = jobs.setdefault(
            directory.job, _JobHere(directory.uid, devices, directory.slurmd, [])
        )
        if devices and not known.devices:
            jobs[directory.job] = known._replace(devices=devices)
    for pid, number, uid in processes:
        if number:
            job = jobs.get(number)
            if job is None:
                job = jobs[number] = _JobHere(uid, "", "", [])
            elif job.uid < 0 and uid != _DRIVER_UID:
                job = jobs[number] = job._replace(uid=uid)
            job.pids.append(pid)
    return jobs


def _cgroup(node: Node, job: _JobHere) -> Claim | None:
    if not job.devices:
        return None
    try:
        devices = parse_devices(node.read(f"{job.devices}/devices.list"))
    except CcagentError:
        return None
    return None if devices is None else Claim(devices=tuple(sorted(devices)))


def _environment(node: Node, job: _JobHere) -> Claim | None:
    """Return the cards in the environment of the job's first process that names any."""
    for pid in sorted(job.pids)[:_ASKED_PROCESSES]:
        try:
            claim = parse_environment(node.read(f"proc/{pid}/environ"))
        except CcagentError:
            continue
        if claim is not None:
            return claim
    return None


def _cards(claim: Claim, reading: GpuReading) -> tuple[int, ...]:
    """Return the indices of the claimed cards; partitioned cards match only by their instances."""
    cards: set[int] = set()
    for device in claim.devices:
        if device in reading.devices and reading.devices[device] not in reading.partitioned:
            cards.add(reading.devices[device])
    known = {card.index for card in reading.cards}
    for number in claim.numbers:
        # Slurm's numbers are the numbers of the device files, if known.
        index = reading.devices.get(
            _NVIDIA.format(number),
            reading.devices.get(_RENDER.format(_FIRST_RENDER + number), number),
        )
        if index in known and index not in reading.partitioned:
            cards.add(index)
    for uuid in claim.uuids:
        cards.update(card.index for card in reading.cards if card.uuid.startswith(uuid))
    return tuple(sorted(cards))
