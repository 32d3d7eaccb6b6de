"""Measurements of memory bandwidth: the probe, the reference, owners of cores, and the service."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ccagent.agents.base import read_state
from ccagent.agents.fast.messages.structures import BandwidthResponse
from ccagent.errors import CcagentError, NotHereError, ProgramError, UnparsableError
from ccagent.log import logger
from ccagent.machine.background import BackgroundCall
from ccagent.machine.cgroup.files import list_pids
from ccagent.machine.cgroup.jobs import job_directories, machine_scopes
from ccagent.machine.checks import Check, CheckResult
from ccagent.machine.cpus import (
    CPUS,
    read_first_sibling,
    read_model,
    read_online,
    read_topology_id,
)
from ccagent.machine.interpreter import python
from ccagent.machine.own_memory import find_permitted_memory, read_resident
from ccagent.machine.parsed import parse_or, read_parsed
from ccagent.machine.procfs.system import parse_cpu_list, parse_meminfo
from ccagent.machine.virtual_machines import read_start
from ccagent.service.private_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ccagent.agents.fast.kept_state import MonitoredMachine
    from ccagent.machine.node import Node

_SIZE = re.compile(rb"([0-9]{1,9})([KMG]?)\s*", re.ASCII)
_UNITS = {b"": 1, b"K": 1024, b"M": 1024**2, b"G": 1024**3}
_USUAL_CACHE = 32 * 1024**2
_LEVELS = 5

WINDOW = 0.4
"""Seconds in which all cores read simultaneously."""

ENOUGH_SHARE = 0.9
"""Minimum share of CPU time of the probe. With less, other load disturbed the measurement."""

_TIME_LIMIT = 30.0
_OUTPUT_LIMIT = 1024 * 1024
_CACHES = 4
_SMALLEST_BUFFER = 16 * 1024**2
_LARGEST_BUFFER = 256 * 1024**2
_OF_AVAILABLE = 4

_OF_PROCESS = 64 * 1024**2
"""Memory of the probe besides its buffers."""

_FILE = "mmbwmon.reference"
_LARGEST_FILE = 1024 * 1024
_EACH_UP_TO = 8
_ATTEMPTS = 3

LEAST_VALUE = 0.33
"""Minimum value of a response, by the specification."""

_CPUSETS = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
_ALLOWED = re.compile(rb"^Cpus_allowed_list:\s*([0-9,-]+)$", re.MULTILINE)
_VCPU = re.compile(rb"CPU [0-9]+/")
_SHOWN = 4


class LastCache(NamedTuple):
    """A last-level cache: size in B, and the CPUs that share it."""

    size: int
    cpus: frozenset[int]


class MeasuredProcessor(NamedTuple):
    """Identity of the processor. A reference of another model, cores or kernel is invalid."""

    model: str
    cpus: tuple[int, ...]
    kernel: str


def parse_size(content: bytes) -> int:
    """Return the B of a cache size such as `32768K`. Raise UnparsableError if invalid."""
    match = _SIZE.fullmatch(content)
    if match is None:
        raise UnparsableError(f"not a size: {content[:80]!r}")
    return int(match[1]) * _UNITS[match[2]]


def read_processor(node: Node) -> MeasuredProcessor:
    """Return the identity of the processor. Raise CcagentError if it can't be read."""
    errors: list[CcagentError] = []
    model = read_model(node, errors) or "unknown"
    if errors:
        raise errors[0]
    kernel = node.read("proc/sys/kernel/osrelease").decode("utf-8", "replace").strip()
    return MeasuredProcessor(model, tuple(read_online(node)), kernel)


def compact_order(node: Node, cpus: Sequence[int]) -> list[int]:
    """Return CPUs in compact order: socket by socket, first the first thread of each core."""
    seen: set[int] = set()
    first: list[tuple[int, int]] = []
    others: list[tuple[int, int]] = []
    for cpu in cpus:
        socket, core = 0, read_first_sibling(node, cpu)
        with suppress(CcagentError):
            socket = read_topology_id(node, cpu, "physical_package_id")
        (others if core in seen else first).append((socket, cpu))
        seen.add(core)
    return [cpu for _, cpu in [*sorted(first), *sorted(others)]]


def last_cache(node: Node, cpu: int) -> LastCache:
    """Return the last-level cache of a CPU; if unknown, 32 MiB for this CPU alone."""
    cache = LastCache(_USUAL_CACHE, frozenset({cpu}))
    for index in range(_LEVELS):
        path = f"{CPUS}/cpu{cpu}/cache/index{index}"
        try:
            size = read_parsed(node, f"{path}/size", parse_size)
            shared = read_parsed(node, f"{path}/shared_cpu_list", parse_cpu_list)
        except CcagentError:
            continue
        cache = LastCache(size, frozenset(shared))
    return cache


class Measured(NamedTuple):
    """Result of a measurement.

    bandwidth: B/s of all cores. share: minimum CPU share of a thread.
    """

    bandwidth: float
    share: float


def measure(node: Node, cores: Sequence[int], seconds: float = WINDOW) -> Measured:
    """Measure the current memory bandwidth of these cores. Raise CcagentError if it fails."""
    size = buffer_size(node, cores)
    program = "from ccagent.agents.fast.bandwidth_probe import main; main()"
    words = [",".join(map(str, cores)), str(size), f"{seconds:g}"]
    output = node.run(
        [*python(program), *words], time_limit=_TIME_LIMIT, output_limit=_OUTPUT_LIMIT
    )
    try:
        results = msgspec.json.decode(output, type=list[tuple[int, float, float]])
    except msgspec.MsgspecError as error:
        raise ProgramError(f"the probe printed unknown output: {error}") from error
    if len(results) != len(cores):
        raise ProgramError(f"the probe measured {len(results)} cores of {len(cores)}")
    return Measured(sum(result[1] for result in results), min(each[2] for each in results))


def buffer_size(node: Node, cores: Sequence[int]) -> int:
    """Return the size of a core's buffer in B, usually four times its share of the last cache.

    The size is between 16 and 256 MiB. Raise ProgramError without enough spare memory.
    """
    wanted = _SMALLEST_BUFFER
    for core in cores:
        cache = last_cache(node, core)
        sharing = len(cache.cpus.intersection(cores)) or 1
        wanted = max(wanted, _CACHES * cache.size // sharing)
    size = min(wanted, _LARGEST_BUFFER)
    spare = _spare_memory(node)
    if spare < size * len(cores):
        raise ProgramError(
            f"{size * len(cores) >> 20} MiB of buffers are needed, but only {spare >> 20} MiB may"
            " be used; see MemoryMax= of the unit"
        )
    return size


def _spare_memory(node: Node) -> int:
    """Return the B allowed for buffers: a quarter of available memory, within our own limit."""
    available = read_parsed(node, "proc/meminfo", parse_meminfo).get("MemAvailable")
    spare = _SMALLEST_BUFFER if available is None else available * 1024 // _OF_AVAILABLE
    return min(spare, max(0, find_permitted_memory(node) - read_resident() - _OF_PROCESS))


class BandwidthReference(msgspec.Struct, frozen=True, kw_only=True):
    """B/s by number of cores, and the processor of the measurement."""

    model: str
    cpus: tuple[int, ...]
    kernel: str
    by_count: dict[int, float]
    time: float

    def expected(self, count: int) -> float:
        """Return the B/s of this number of idle cores, interpolated between measured numbers."""
        if count in self.by_count:
            return self.by_count[count]
        counts = sorted(self.by_count)
        below = max((known for known in counts if known < count), default=counts[0])
        above = min((known for known in counts if known > count), default=counts[-1])
        if below == above:
            return self.by_count[below]
        fraction = (count - below) / (above - below)
        return self.by_count[below] + fraction * (self.by_count[above] - self.by_count[below])

    def value_of(self, bandwidth: float, count: int) -> float:
        """Return the reached share of the idle bandwidth, 0.33 to 1."""
        return round(min(1.0, max(LEAST_VALUE, bandwidth / self.expected(count))), 3)


def counts_to_measure(cpus: int) -> list[int]:
    """Return the numbers of cores to measure: each up to eight, then in steps of 50 %."""
    counts = [*range(1, min(cpus, _EACH_UP_TO) + 1)]
    while counts[-1] < cpus:
        counts.append(min(cpus, counts[-1] * 3 // 2))
    return counts


def measure_reference(
    node: Node, report: Callable[[int, float, float], None]
) -> BandwidthReference:
    """Measure the reference: the median of three attempts for each number of cores.

    report: called with cores, B/s and share of each measurement. Raise CcagentError if it fails or
    the node is not idle.
    """
    processor = read_processor(node)
    order = compact_order(node, processor.cpus)
    by_count: dict[int, float] = {}
    for count in counts_to_measure(len(order)):
        attempts = [measure(node, order[:count]) for _ in range(_ATTEMPTS)]
        share = min(attempt.share for attempt in attempts)
        bandwidth = sorted(attempt.bandwidth for attempt in attempts)[_ATTEMPTS // 2]
        report(count, bandwidth, share)
        if share < ENOUGH_SHARE:
            raise ProgramError(
                f"{count} cores: the probe got {100 * share:.0f} % of their time: the node is"
                " not idle; drain it and measure again"
            )
        by_count[count] = bandwidth
    return BandwidthReference(**processor._asdict(), by_count=by_count, time=node.clock.time())


def read_reference(node: Node, directory: str) -> BandwidthReference:
    """Return the reference of this node from the state directory.

    Raise NotHereError, with the fix, if it is missing or of another processor, CPUs or kernel.
    """
    reference = None
    if directory:
        reference = read_state(
            os.path.join(directory, _FILE), BandwidthReference, _LARGEST_FILE, "measure it again"
        )
    hint = "on the idle node, run: ccagent fast reference"
    if reference is None or not reference.by_count or min(reference.by_count.values()) <= 0:
        raise NotHereError(f"no reference; {hint}")
    now = read_processor(node)
    for what, old, new in (
        ("processor", reference.model, now.model),
        ("CPUs", reference.cpus, now.cpus),
        ("kernel", reference.kernel, now.kernel),
    ):
        if old != new:
            raise NotHereError(f"the reference is of another {what}; {hint}")
    return reference


def check_reference(node: Node, directory: str) -> Check:
    """Return the check that the reference exists: no measurement is possible without it."""

    def find() -> CheckResult:
        try:
            reference = read_reference(node, directory)
        except NotHereError as error:
            return CheckResult("missing", str(error), "on the idle node: ccagent fast reference")
        return CheckResult("good", f"of {max(reference.by_count)} cores")

    impact = "every mmbwmon request is answered with an error"
    return Check("fast", "reference of mmbwmon", find, impact)


def write_reference(directory: str, reference: BandwidthReference) -> str:
    """Write a reference; return the file. Raise CcagentError if that fails."""
    path = os.path.join(directory, _FILE)
    try:
        replace_file(path, msgspec.msgpack.encode(reference))
    except OSError as error:
        raise CcagentError(f"{path}: {error.strerror}") from error
    return path


def find_owners(
    node: Node, machines: Iterable[MonitoredMachine], cpus: Iterable[int]
) -> dict[int, str]:
    """Return the owner of each owned core, by core.

    A job that is not confined to cores owns all of them. A suspended machine owns none: a scheduler
    suspends machines to free cores for a measurement.
    """
    every = [*cpus]
    owners: dict[int, str] = {}
    for job, cores in job_cores(node).items():
        for core in cores or every:
            owners.setdefault(core, f"job {job}")
    suspended: set[int] = set()
    for machine in machines:
        if read_start(node, machine.process_id) != machine.start:
            continue  # the machine has ended, and another process may have its pid
        if machine.is_suspended:
            suspended.add(machine.process_id)
            continue
        for core in machine_cores(node, machine.process_id):
            owners.setdefault(core, f"machine {machine.name}")
    for name, _, directory in machine_scopes(node, ("cpuacct", "memory", "cpuset")):
        process = next(iter(list_pids(node, directory)), 0)
        if process and process not in suspended:
            for core in machine_cores(node, process):
                owners.setdefault(core, f"machine {name}")
    return owners


def machine_cores(node: Node, process: int) -> set[int]:
    """Return the allowed CPUs of a machine's virtual CPUs, or else of all its threads."""
    vcpus: set[int] = set()
    all_threads: set[int] = set()
    path = f"proc/{process}/task"
    for thread in node.list_names(path):
        try:
            match = _ALLOWED.search(node.read(f"{path}/{thread}/status"))
            cpus = set(parse_cpu_list(match[1])) if match is not None else set[int]()
            command = node.read_single(f"{path}/{thread}/comm")
        except CcagentError:
            continue
        all_threads |= cpus
        if _VCPU.match(command):
            vcpus |= cpus
    return vcpus or all_threads


def job_cores(node: Node) -> dict[int, set[int]]:
    """Return the cores of each Slurm job; an empty set for a job that is not confined."""
    by_job: dict[int, set[int]] = {}
    for controllers in (("cpuset",), ("memory", "cpuacct", "freezer")):
        try:
            directories = job_directories(node, controllers)
        except CcagentError:
            continue
        for directory in directories:
            if directory.machine:
                continue  # its cores are those of its virtual CPUs
            cores = _cpuset(node, directory.path) if controllers == ("cpuset",) else set[int]()
            by_job[directory.job] = by_job.get(directory.job, set()) | cores
    return by_job


def _cpuset(node: Node, directory: str) -> set[int]:
    for name in _CPUSETS:
        if cores := parse_or(node, f"{directory}/{name}", parse_cpu_list, list[int]()):
            return set(cores)
    return set()


def check_cores(node: Node, cores: Sequence[int], machines: Iterable[MonitoredMachine]) -> str:
    """Return why these cores must not be measured, or "". Raise CcagentError without CPU data."""
    cpus = read_online(node)
    missing = sorted(set(cores) - set(cpus))
    if missing:
        return f"no core {_format_cores(missing)} on this node"
    owners = find_owners(node, machines, cpus)
    owned = [core for core in cores if core in owners]
    if owned:
        return f"core {_format_cores(owned)} is owned by {owners[owned[0]]}"
    return ""


def measure_now(
    node: Node, cores: Sequence[int], directory: str, machines: Iterable[MonitoredMachine]
) -> BandwidthResponse:
    """Measure the available bandwidth of cores if allowed; else return the reason in `details`."""
    wanted = tuple(cores)
    try:
        reason = check_cores(node, wanted, machines)
        if reason:
            return BandwidthResponse(cores=wanted, details=reason)
        reference = read_reference(node, directory)
        measured = measure(node, wanted)
    except CcagentError as error:
        return BandwidthResponse(cores=wanted, details=str(error))
    is_valid = measured.share >= ENOUGH_SHARE
    details = ""
    if not is_valid:
        details = (
            f"invalid: the probe got {100 * measured.share:.0f} % of the time of its cores,"
            f" and needs {100 * ENOUGH_SHARE:.0f} %"
        )
    return BandwidthResponse(
        cores=wanted,
        value=reference.value_of(measured.bandwidth, len(wanted)),
        is_valid=is_valid,
        cpu_share=round(measured.share, 3),
        bandwidth=round(measured.bandwidth),
        details=details,
    )


class BandwidthService:
    """Measures for a scheduler, one request at a time and within the allowed rate."""

    def __init__(self, node: Node, directory: str, shortest_interval: float) -> None:
        self._node = node
        self._directory = directory
        self._interval = shortest_interval
        self._running: BackgroundCall[None] | None = None
        self._next_at = 0.0

    def start(
        self,
        cores: Sequence[int],
        machines: Sequence[MonitoredMachine],
        when_done: Callable[[BandwidthResponse], None],
    ) -> str:
        """Start a measurement; return why it is refused, or "". when_done: gets the response.

        One thread at a time may call this.
        """
        now = self._node.clock.monotonic()
        if self._running is not None and not self._running.is_done:
            return "another measurement is running"
        if now < self._next_at:
            return f"the last measurement was less than {self._interval:g} s ago; see max-rate"
        self._next_at = now + self._interval
        responses: list[BandwidthResponse] = []

        def work() -> None:
            try:
                responses.append(measure_now(self._node, cores, self._directory, machines))
            except Exception as error:  # noqa: BLE001 - a request must be answered after any error
                logger.exception("agent fast: a measurement failed")
                responses.append(BandwidthResponse(cores=tuple(cores), details=f"failed: {error}"))

        try:
            self._running = BackgroundCall(
                work, "fast measurement", lambda: when_done(responses[0])
            )
        except ProgramError as error:
            return f"can't start a thread: {error}"
        return ""


def _format_cores(cores: Sequence[int]) -> str:
    more = ", ..." if len(cores) > _SHOWN else ""
    return ", ".join(map(str, cores[:_SHOWN])) + more
