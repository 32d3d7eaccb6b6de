"""Readings that the collectors of one scrape share: jobs, their processes, cards, allocations."""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from ccagent.agents.jobio.usage import MountName, MountNames, merge_mounts, read_totals
from ccagent.errors import CcagentError, NotHereError
from ccagent.log import logger
from ccagent.machine.background import BackgroundCall
from ccagent.machine.bpf.pins import DIRECTORY
from ccagent.machine.cgroup.counters import JobCgroups
from ccagent.machine.cgroup.files import list_pids
from ccagent.machine.cgroup.jobs import V2
from ccagent.machine.descriptors import KeptFiles
from ccagent.machine.gpu.nvml import ACTIVITY, TRAFFIC
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.process_files import parse_environ
from ccagent.machine.procfs.system import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.agents.jobio.usage import MountUse, NetworkUse
    from ccagent.agents.sonar.jobs.allocations import Allocation, Allocations
    from ccagent.exporter.http_server import StoppedClients
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.machine.cgroup.counters import JobCounters
    from ccagent.machine.cgroup.jobs import JobDirectory
    from ccagent.machine.gpu.gpus import GpuReading, Gpus
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SysinfoGpuCard


_PART = re.compile(r"step_[0-9a-z+_]{1,40}|task_[0-9a-z]{1,20}|user|libvirt|emulator", re.ASCII)
_DEEPEST = 3
"""Levels below a job: step_0/user/task_0."""
_ASKED_PROCESSES = 3
_TRIES = 10
_LONGEST_NAME = 128
_PATIENCE = 0.2
_VARIABLES = {
    b"SLURM_JOB_ACCOUNT": "account",
    b"SLURM_JOB_PARTITION": "partition",
    b"SLURM_JOB_NAME": "name",
}


class JobIdentity(NamedTuple):
    """Owner and description of a job. uid: -1 if unknown. Unknown texts are empty."""

    uid: int = -1
    user: str = ""
    account: str = ""
    partition: str = ""
    name: str = ""


class JobProcesses:
    """The processes of jobs, and a cache of the identity of each job.

    The environment is under the user's control: it is read once, and only affects its own job. A
    thread reads it: the read hangs if the process has mapped its memory from a FUSE file.
    """

    def __init__(self, *, reads_environment: bool = True) -> None:
        self._reads_environment = reads_environment
        self._known: dict[int, JobIdentity] = {}
        self._tries: dict[int, int] = {}
        self._reading: dict[int, BackgroundCall[dict[str, str]]] = {}

    def begin(self, jobs: set[int]) -> None:
        """Start a reading: forget jobs that are not in `jobs`."""
        self._known = {job: known for job, known in self._known.items() if job in jobs}
        self._tries = {job: tries for job, tries in self._tries.items() if job in jobs}
        self._reading = {job: call for job, call in self._reading.items() if job in jobs}

    def of(
        self, node: Node, files: KeptFiles, job: int, directories: list[JobDirectory]
    ) -> tuple[tuple[int, ...], JobIdentity]:
        """Return the sorted process ids of a job, and its identity."""
        pids: list[int] = []
        for each in directories:
            # Only steps and tasks: not slurmstepd's group. In version 2 only leaves hold processes.
            below = 0 if each.machine else 3 if each.controller == V2 else 1
            pids += list_pids(files, each.path, _DEEPEST, below=below, named=_PART)
        pids.sort()
        known = self._known.get(job)
        if known is None:
            known = self._identify(node, job, directories, pids)
        return tuple(pids), known

    def _identify(
        self, node: Node, job: int, directories: list[JobDirectory], pids: list[int]
    ) -> JobIdentity:
        uid = next((each.uid for each in directories if each.uid >= 0), -1)
        if uid < 0:
            uid = _find_owner(node, pids)
        user = node.user(uid) if uid >= 0 else ""
        texts = self._read_texts(node, job, uid, pids) if self._reads_environment else {}
        if texts is None:
            return JobIdentity(uid, user)
        identity = JobIdentity(uid, user, **texts)
        tries = self._tries[job] = self._tries.get(job, 0) + 1
        is_complete = uid >= 0 and (bool(texts) or not self._reads_environment)
        if is_complete or tries >= _TRIES:
            self._known[job] = identity
        return identity

    def _read_texts(self, node: Node, job: int, uid: int, pids: list[int]) -> dict[str, str] | None:
        """Return the texts from a job's environment; None while the read hangs."""
        call = self._reading.pop(job, None)
        if call is None:
            try:
                call = BackgroundCall(
                    lambda: _read_environment(node, uid, pids), "exporter-environment"
                )
            except CcagentError:
                return {}
            call.wait(_PATIENCE)
        if not call.is_done:
            self._reading[job] = call
            return None
        return call.result()


def _find_owner(node: Node, pids: list[int]) -> int:
    """Return the uid of the first process that does not belong to root.

    Return 0 if all belong to root, -1 if no owner can be read.
    """
    found = -1
    for pid in pids:
        try:
            uid = node.owner(f"proc/{pid}")
        except CcagentError:
            continue
        if uid:
            return uid
        found = 0
    return found


def _read_environment(node: Node, uid: int, pids: list[int]) -> dict[str, str]:
    """Return the texts from the first process of the user whose environment has them; else {}."""
    asked = 0
    for pid in pids:
        if asked >= _ASKED_PROCESSES:
            break
        try:
            if node.owner(f"proc/{pid}") != uid:
                continue
            asked += 1
            found = parse_job_variables(node.read(f"proc/{pid}/environ"))
        except CcagentError:
            continue
        if found:
            return found
    return {}


def parse_job_variables(content: bytes) -> dict[str, str]:
    """Parse /proc/PID/environ. Return account, partition and name of the job, if set."""
    return {
        _VARIABLES[name]: value.decode("utf-8", "replace")[:_LONGEST_NAME]
        for name, value in parse_environ(content, _VARIABLES).items()
    }


T = TypeVar("T")

_MOST_MOUNTS = 32
"""Maximum of mounts of a job with series: users can mount FUSE file systems without limit."""
_OTHERS = MountName("other", "other", "")


class JobsIo(NamedTuple):
    """I/O of the jobs by mount, their traffic, and the number of lost calls."""

    mounts: list[MountUse]
    network: list[NetworkUse]
    lost: int


class JobIoReading:
    """Reads the pinned programs, and keeps the names of mounts."""

    def __init__(self, most_jobs: int) -> None:
        self._most_jobs = most_jobs
        self._names = MountNames()

    def read(self, node: Node) -> JobsIo:
        """Return the counters of jobs. Raise NotHereError if the programs are not loaded.

        Raise NotPermittedError if this user may not read them.
        """
        mounts, network, lost = read_totals(node, DIRECTORY, None, self._names)
        known = {use.job for use in mounts} | {use.job for use in network}
        jobs = sorted(known - {0})[: self._most_jobs]
        kept: list[MountUse] = []
        counts = dict.fromkeys(jobs, 0)
        for use in mounts:
            if use.job in counts:
                counts[use.job] += 1
                shown = use.mount._replace(source="")  # it may hold names of users and servers
                is_shown = counts[use.job] <= _MOST_MOUNTS
                kept.append(use._replace(mount=shown if is_shown else _OTHERS))
        return JobsIo(merge_mounts(kept), [use for use in network if use.job in counts], lost)


_SAME_SCRAPE = 0.5
"""Maximum age in seconds of a reading of the same scrape."""
_DESCRIBED_FOR = 3600.0
_DETAILS = (
    "energy", "mem_utilization", "encoder_utilization", "decoder_utilization", "pcie_replays",
    "remapped_rows_corrected", "remapped_rows_uncorrected", "remapped_rows_failure", "xid",
    "mem_temperature", "fan", "mem_reserved", "vgpu_licensed", "nvlink_tx", "nvlink_rx", "xgmi_rx",
    "xgmi_tx", *ACTIVITY, *TRAFFIC,
)  # fmt: skip


class JobOnNode(NamedTuple):
    """A job on this node.

    group: one of its control group directories. slurmd: of that directory, the node name of the
    slurmd that created it, if the machine has several. pids: its processes. cpus: its hwthreads.
    devices: with version 2 the I/O by block device, as `parse_io` returns it.
    """

    job: int
    counters: JobCounters
    group: str
    slurmd: str
    identity: JobIdentity
    pids: tuple[int, ...]
    cpus: tuple[int, ...]
    devices: dict[str, tuple[int, ...]]


class JobsOnNode(NamedTuple):
    """The exposed jobs, sorted by id, and the number of jobs that are left out."""

    jobs: list[JobOnNode]
    left_out: int


class CardsOnNode(NamedTuple):
    """Cards of the node.

    descriptions: by card index. allocations: of cards to jobs. jobs: job id by process id.
    """

    reading: GpuReading
    descriptions: dict[int, SysinfoGpuCard]
    allocations: list[Allocation]
    jobs: dict[int, int]

    def used_by_job(self) -> dict[int, dict[int, float]]:
        """Return the utilisation in percent by job id and card index, summed over processes."""
        found: dict[int, dict[int, float]] = {}
        for pid, uses in self.reading.processes.items():
            job = self.jobs.get(pid)
            if job is not None:
                cards = found.setdefault(job, {})
                for use in uses:
                    cards[use.index] = cards.get(use.index, 0.0) + (use.gpu_util or 0.0)
        return found


class SharedReading(Generic[T]):
    """A reading that is taken once per scrape and shared by the collectors."""

    def __init__(self, read: Callable[[Node], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._moment = 0.0
        self._value: T | CcagentError | None = None

    def get(self, node: Node) -> T:
        """Return the reading of this scrape. Raise its CcagentError if it failed."""
        with self._lock:
            value = self._value
            if value is None or time.monotonic() - self._moment > _SAME_SCRAPE:
                try:
                    value = self._read(node)
                except CcagentError as error:
                    value = type(error)(*error.args)  # without the frames of this reading
                self._value = value
                self._moment = time.monotonic()
        if isinstance(value, CcagentError):
            raise type(value)(*value.args)
        return value


class NodeSources:
    """The shared readings. Each is taken on demand."""

    def __init__(self, settings: ExporterSettings) -> None:
        self._settings = settings
        self.stopped_clients: StoppedClients | None = None
        self.jobs = SharedReading(self._read_jobs)
        self.cards = SharedReading(self._read_cards)
        self.job_io = SharedReading(self._read_job_io)
        self._cgroups = JobCgroups(is_detailed=True)
        self._files: KeptFiles | None = None
        self._processes = JobProcesses(reads_environment=settings.job_info == "environment")
        self._job_io: JobIoReading | None = None
        self._gpus: Gpus | None = None
        self._allocations: Allocations | None = None
        self._descriptions: dict[int, SysinfoGpuCard] = {}
        self._described_at: float | None = None

    def find_jobs(self, node: Node) -> JobsOnNode:
        """Return the jobs: none if Slurm has created no control group. Raise as `jobs` else."""
        try:
            return self.jobs.get(node)
        except NotHereError:
            return JobsOnNode([], 0)

    def _read_jobs(self, node: Node) -> JobsOnNode:
        """Read the control groups of all jobs. Raise NotHereError if Slurm has created none."""
        files = self._files = self._files or KeptFiles(node)
        try:
            counters = self._cgroups.read(node, files)
            return self._describe_jobs(node, files, counters)
        finally:
            files.sweep()

    def _describe_jobs(
        self, node: Node, files: KeptFiles, counters: dict[int, JobCounters]
    ) -> JobsOnNode:
        for problem in self._cgroups.errors:
            logger.warning("exporter: jobs: %s", problem)
        # The oldest jobs keep their series: an interrupted series is worse than a missing series.
        chosen = sorted(counters)[: self._settings.most_jobs]
        if len(chosen) < len(counters):
            logger.warning(
                "exporter: %d of %d jobs have no series: max-jobs is %d",
                len(counters) - len(chosen), len(counters), len(chosen), key="exporter max-jobs",
            )  # fmt: skip
        found: list[JobOnNode] = []
        self._processes.begin(set(chosen))
        for job in chosen:
            kinds = self._cgroups.directories[job]
            first = next(iter(kinds.values()))
            pids, identity = self._processes.of(node, files, job, kinds.get("cpuacct", first))
            cpus = _read_cpus(files, kinds.get("cpuset", first))
            group, slurmd = first[0].path, first[0].slurmd
            devices = self._cgroups.devices.get(group, {})
            found.append(
                JobOnNode(job, counters[job], group, slurmd, identity, pids, cpus, devices)
            )
        return JobsOnNode(found, len(counters) - len(chosen))

    def _read_job_io(self, node: Node) -> JobsIo:
        """Read the kernel programs. Raise NotHereError if they are not loaded."""
        if self._job_io is None:
            self._job_io = JobIoReading(self._settings.most_jobs)
        return self._job_io.read(node)

    def _read_cards(self, node: Node) -> CardsOnNode:
        """Read the cards through the vendors' libraries. Raise NotHereError without a card."""
        from ccagent.machine.gpu.vendor import find_cards, vendor_directories

        vendors = self._settings.gpu_vendors
        if not any(find_cards(node, vendor_directories(vendor)) for vendor in vendors):
            raise NotHereError("no card of the vendors in gpu-vendors")
        gpus = self._open_gpus(node)
        errors: list[str] = []
        if self._described_at is None or time.monotonic() > self._described_at + _DESCRIBED_FOR:
            gpus.ask("describe")
            described = {card.index: card for card in gpus.descriptions(errors)}
            if described:
                self._descriptions = described
                self._described_at = time.monotonic()
        gpus.ask("read", _DETAILS)
        reading = gpus.reading(errors)
        for problem in errors:
            logger.warning("exporter: gpus: %s", problem)
        jobs = self._list_jobs(node)
        processes = [
            JobProcess(pid, each.job, each.identity.uid) for each in jobs for pid in each.pids
        ]
        return CardsOnNode(
            reading,
            self._descriptions,
            self._list_allocations(node, processes, reading),
            {each.pid: each.job for each in processes},
        )

    def _open_gpus(self, node: Node) -> Gpus:
        if self._gpus is None:
            from ccagent.machine.gpu.gpus import Gpus

            self._gpus = Gpus(node, self._settings.gpu_vendors, 5.0)
        return self._gpus

    def _list_jobs(self, node: Node) -> list[JobOnNode]:
        try:
            return self.jobs.get(node).jobs
        except CcagentError:
            return []

    def _list_allocations(
        self, node: Node, processes: list[JobProcess], reading: GpuReading
    ) -> list[Allocation]:
        if not processes:
            return []
        if self._allocations is None:
            from ccagent.agents.sonar.jobs.allocations import Allocations

            self._allocations = Allocations("scontrol", self._settings.squeue)
        return self._allocations.read(node, processes, reading)

    def close(self) -> None:
        """Close files, and end the processes that have loaded the GPU libraries."""
        self._files = None
        if self._gpus is not None:
            self._gpus.close()


_CPUSETS = ("cpuset.cpus", "cpuset.cpus.effective")
"""The first is empty if Slurm does not constrain cores: a job may then use those of the node."""


def _read_cpus(files: KeptFiles, directories: list[JobDirectory]) -> tuple[int, ...]:
    """Return the hwthreads of a job; () if they can't be read."""
    found: set[int] = set()
    for each in directories:
        for name in _CPUSETS:
            with suppress(CcagentError):
                if cpus := read_parsed(files, f"{each.path}/{name}", parse_cpu_list):
                    found.update(cpus)
                    break
    return tuple(sorted(found))


class JobProcess(NamedTuple):
    """A process of a job, the input of `Allocations.read`."""

    pid: int
    job: int
    uid: int
