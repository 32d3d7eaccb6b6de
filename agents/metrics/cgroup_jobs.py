"""Slurm jobs on this node, as their control groups account for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, TypeVar

from ccagent.agents.metrics.pressure import parse_pressure
from ccagent.agents.metrics.reading import Count, Gauge, Metric, Place, Reader, ReaderSettings
from ccagent.agents.sysinfo import read_parsed
from ccagent.envelopes import LARGEST_UINT
from ccagent.errors import CcagentError, NotHereError, UnparsableError, VanishedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.node import Node

T = TypeVar("T")

_ROOT = "sys/fs/cgroup"

# Only at these places: elsewhere users can make cgroups of their own.
#
#   v1  memory/slurm/uid_5002/job_13, slurm_NODE/... where one machine has several slurmd
#   v2  system.slice/slurmstepd.scope/job_13, NODE_slurmstepd.scope likewise
_SLURM = re.compile(r"slurm(?:_.+)?")
_SCOPE = re.compile(r"(?:.+_)?slurmstepd\.scope")
_USER = re.compile(r"uid_[0-9]{1,10}", re.ASCII)
_JOB = re.compile(r"job_([0-9]{1,19})", re.ASCII)
_STEP = re.compile(r"step_[0-9a-z+]{1,22}", re.ASCII)
_TASK = re.compile(r"task_[0-9a-z]{1,20}", re.ASCII)

# LONG_MAX in whole pages, which may have 64 KiB.
_NO_LIMIT = 2**63 - 2**16
_FIELD = re.compile(rb"^([a-z_]+) ([0-9]{1,20})$", re.MULTILINE)
_IO = re.compile(rb"\b(?:([0-9]{1,4}:[0-9]{1,7})|([rRwW])(?:bytes=|ead |rite )([0-9]{1,20}))\b")
_LOOP = "7:"
_MOST_DEVICES = 10_000


def parse_amount(content: bytes) -> int:
    """Parse a file of one number. Raises UnparsableError."""
    text = content.strip()
    if not text.isdigit() or len(text) > 20:
        raise UnparsableError(f"not a number: {content[:80]!r}")
    return _uint(text)


def parse_limit(content: bytes) -> int | None:
    """Parse memory.max or memory.limit_in_bytes: B; None for no limit. Raises UnparsableError."""
    if content.strip() == b"max":
        return None
    limit = parse_amount(content)
    return limit if limit < _NO_LIMIT else None


def parse_fields(content: bytes, metrics: dict[bytes, tuple[str, int]]) -> dict[str, int]:
    """Parse lines `name number`, those of cpu.stat, memory.events and memory.oom_control.

    metrics: by name, with what the number is multiplied by; what isn't there is left out. Raises
    UnparsableError for a number out of range.
    """
    found = dict(_FIELD.findall(content))
    return {
        metric: _uint(found[name]) * factor
        for name, (metric, factor) in metrics.items()
        if name in found
    }


def parse_io(content: bytes) -> dict[str, tuple[int, int]]:
    """Parse io.stat, v1 blkio.*io_service_bytes_recursive: B read, written by `major:minor`.

    Lines `8:0 rbytes=1 wbytes=2 rios=1 wios=1 dbytes=0 dios=0`, or `8:0 Read 1` and `8:0 Write 2`.
    Some kernels let those of idle devices go on in the next one, and call a device `(unknown)`,
    which is left out. Raises UnparsableError for a number out of range.
    """
    found: dict[str, tuple[int, int]] = {}
    for line in content.split(b"\n"):
        device = ""
        for name, way, number in _IO.findall(line):
            if name:
                device = name.decode("ascii")
            elif device:
                read, written = found.get(device, (0, 0))
                value = _uint(number)
                found[device] = (value, written) if way in b"rR" else (read, value)
    return found


def _uint(digits: bytes) -> int:
    number = int(digits)
    if number > LARGEST_UINT:
        raise UnparsableError(f"a number is out of range: {number}")
    return number


def _amount(metric: str) -> Callable[[bytes], dict[str, int]]:
    return lambda content: {metric: parse_amount(content)}


def _limit(content: bytes) -> dict[str, int]:
    limit = parse_limit(content)
    return {} if limit is None else {"job_mem_limit": limit}


def _fields(**metrics: tuple[str, int]) -> Callable[[bytes], dict[str, int]]:
    wanted = {name.encode(): metric for name, metric in metrics.items()}
    return lambda content: parse_fields(content, wanted)


def _pressure(metric: str) -> Callable[[bytes], dict[str, int]]:
    def parse(content: bytes) -> dict[str, int]:
        some = parse_pressure(content).get("some")
        return {} if some is None else {metric: some.total}

    return parse


_V1 = ("memory", "cpuacct", "cpu", "blkio")
_FILES: dict[str, dict[str, Callable[[bytes], dict[str, int]]]] = {
    "memory": {
        "memory.usage_in_bytes": _amount("job_mem_used"),
        "memory.max_usage_in_bytes": _amount("job_mem_peak"),
        "memory.limit_in_bytes": _limit,
    },
    "cpuacct": {"cpuacct.usage": _amount("job_cpu_time")},
    "cpu": {"cpu.stat": _fields(throttled_time=("job_cpu_throttled", 1))},
    "blkio": {},
    "v2": {
        "memory.current": _amount("job_mem_used"),
        "memory.peak": _amount("job_mem_peak"),
        "memory.max": _limit,
        "memory.events": _fields(oom_kill=("job_oom_kills", 1)),
        "cpu.stat": _fields(
            usage_usec=("job_cpu_time", 1000), throttled_usec=("job_cpu_throttled", 1000)
        ),
        "cpu.pressure": _pressure("job_pressure_cpu"),
        "memory.pressure": _pressure("job_pressure_memory"),
        "io.pressure": _pressure("job_pressure_io"),
    },
}
"""What is read of a job, by controller of version 1, or all of it in version 2. Times in ns."""

_OOM_CONTROL = _fields(oom_kill=("job_oom_kills", 1))
_IO_FILES = {
    "v2": ("io.stat",),
    # The second one is CFQ's, before Linux 5.0.
    "blkio": ("blkio.throttle.io_service_bytes_recursive", "blkio.io_service_bytes_recursive"),
}

_GAUGES = frozenset({"job_mem_used", "job_mem_peak", "job_mem_limit", "job_oom_kills"})
_PRESSURE = "job_pressure_"
_NS, _US_PERCENT = 1e-9, 100 / 1e6


def _metric(unit: str, scale: float, description: str, source: str) -> Metric:
    return Metric(unit=unit, type="node", description=description, source=source, scale=scale)


class CgroupJobsReader(Reader[ReaderSettings]):
    """Memory, CPU, I/O and pressure of each Slurm job on this node: `stype=job`.

    What several slurmd tell of one job adds up; of pressure it is the mean.
    """

    name = "cgroup-jobs"
    metrics: ClassVar[dict[str, Metric]] = {
        "job_mem_used": _metric(
            "B", 1, "memory that counts towards the job's limit, its page cache included",
            "memory.current; v1: memory.usage_in_bytes",
        ),
        "job_mem_peak": _metric(
            "B", 1, "the most that job_mem_used has been",
            "memory.peak, since Linux 5.19; v1: memory.max_usage_in_bytes",
        ),
        "job_mem_limit": _metric(
            "B", 1, "memory that the job may use, if there is a limit",
            "memory.max; v1: memory.limit_in_bytes",
        ),
        "job_cpu_time": _metric(
            "", _NS, "CPU time in a second: 1 is one hwthread all the time",
            "cpu.stat: usage_usec; v1: cpuacct.usage",
        ),
        "job_cpu_throttled": _metric(
            "", _NS, "time in a second for which the job's quota stopped it, summed over hwthreads",
            "cpu.stat: throttled_usec; v1: throttled_time",
        ),
        "job_oom_kills": _metric(
            "", 1, "processes of the job killed for want of memory, so far",
            "memory.events: oom_kill; v1: memory.oom_control of the job, its steps and tasks",
        ),
        "job_io_read": _metric(
            "B/s", 1, "read from block devices, hence not from network file systems",
            "io.stat: rbytes; v1: blkio.throttle.io_service_bytes_recursive",
        ),
        "job_io_write": _metric(
            "B/s", 1, "written to block devices, hence not to network file systems",
            "io.stat: wbytes; v1: blkio.throttle.io_service_bytes_recursive",
        ),
        "job_pressure_cpu": _metric(
            "%", _US_PERCENT, "share of time in which a task of the job waits for a CPU",
            "cpu.pressure: some",
        ),
        "job_pressure_memory": _metric(
            "%", _US_PERCENT, "share of time in which a task of the job waits for memory",
            "memory.pressure: some",
        ),
        "job_pressure_io": _metric(
            "%", _US_PERCENT, "share of time in which a task of the job waits for a disk or"
            " file system", "io.pressure: some",
        ),
    }  # fmt: skip

    def __init__(self, settings: ReaderSettings | None = None) -> None:
        super().__init__(settings)
        self._complained: set[str] = set()
        self._jobs: dict[int, dict[str, list[str]]] = {}
        self._kills: dict[str, dict[str, int]] = {}
        self._layered: dict[str, bool] = {}

    def read(self, node: Node) -> Iterable[Gauge | Count]:
        """Read what there is of each job; NotHereError where Slurm has made no cgroup."""
        self.errors = []
        self._complained = set()
        before, self._jobs = self._jobs, self._find(node)
        found: list[Gauge | Count] = []
        for job, directories in self._jobs.items():
            place = Place("node", "", "job", str(job))
            # Sums over other directories than before are no counters.
            is_same = before.get(job, directories) == directories
            for kind, paths in directories.items():
                for metric, value in self._sums(node, kind, paths).items():
                    if metric in _GAUGES:
                        found.append(Gauge(metric, value, place))
                    elif is_same:
                        found.append(Count(metric, value, place))
        here = {path for job in self._jobs.values() for path in job.get("memory", ())}
        self._kills = {path: kills for path, kills in self._kills.items() if path in here}
        return found

    def _find(self, node: Node) -> dict[int, dict[str, list[str]]]:
        """Give the directories of each job, by controller, `v2` for those of version 2."""
        jobs: dict[int, dict[str, list[str]]] = {}
        is_here = False

        def add(kind: str, directory: str) -> None:
            for name in self._names(node, directory, _JOB):
                paths = jobs.setdefault(int(name[4:]), {}).setdefault(kind, [])
                paths.append(f"{directory}/{name}")

        for controller in _V1:
            root = f"{_ROOT}/{controller}"
            for slurm in self._names(node, root, _SLURM):
                is_here = True
                for user in self._names(node, f"{root}/{slurm}", _USER):
                    add(controller, f"{root}/{slurm}/{user}")
        if not jobs:
            for scope in self._names(node, f"{_ROOT}/system.slice", _SCOPE):
                is_here = True
                add("v2", f"{_ROOT}/system.slice/{scope}")
        if not is_here and not self.errors:
            raise NotHereError(f"/{_ROOT}: Slurm has made no control groups")
        return jobs

    def _sums(self, node: Node, kind: str, paths: list[str]) -> dict[str, int]:
        """Add up what all the directories of a job tell."""
        parts = [self._values(node, kind, path) for path in paths]
        if len(parts) == 1:
            return parts[0]
        sums: dict[str, int] = {}
        for metric in parts[0]:
            if all(metric in part for part in parts):
                total = sum(part[metric] for part in parts)
                sums[metric] = total // len(parts) if metric.startswith(_PRESSURE) else total
        return sums

    def _values(self, node: Node, kind: str, path: str) -> dict[str, int]:
        values: dict[str, int] = {}
        for name, parse in _FILES[kind].items():
            values |= self._parsed(node, f"{path}/{name}", parse) or {}
        for name in _IO_FILES.get(kind, ()):
            devices = self._parsed(node, f"{path}/{name}", parse_io)
            if devices is not None:
                used = [io for device, io in devices.items() if not self._is_layer(node, device)]
                values["job_io_read"] = sum(read for read, _ in used)
                values["job_io_write"] = sum(written for _, written in used)
                break
        if kind == "memory":
            values |= self._oom_kills_v1(node, path)
        return values

    def _oom_kills_v1(self, node: Node, path: str) -> dict[str, int]:
        """Sum over the steps and tasks, also those that have ended: version 1 doesn't.

        (memcg_memory_event() in include/linux/memcontrol.h.) Nothing before Linux 4.13.
        """
        own = self._parsed(node, f"{path}/memory.oom_control", _OOM_CONTROL)
        if not own:
            return {}
        kills = self._kills.setdefault(path, {})
        kills[""] = own["job_oom_kills"]
        for step in self._names(node, path, _STEP):
            tasks = self._names(node, f"{path}/{step}", _TASK)
            for part in (step, *(f"{step}/{task}" for task in tasks)):
                found = self._parsed(node, f"{path}/{part}/memory.oom_control", _OOM_CONTROL)
                if found and found["job_oom_kills"]:
                    kills[part] = found["job_oom_kills"]
        return {"job_oom_kills": sum(kills.values())}

    def _is_layer(self, node: Node, device: str) -> bool:
        """Tell whether what a device does is also told of others: dm, md, loop."""
        if device.startswith(_LOOP):
            return True
        known = self._layered.get(device)
        if known is None:
            if len(self._layered) >= _MOST_DEVICES:
                self._layered.clear()
            try:
                known = bool(node.list(f"sys/dev/block/{device}/slaves"))
            except CcagentError:
                known = False
            self._layered[device] = known
        return known

    def _parsed(self, node: Node, path: str, parse: Callable[[bytes], T]) -> T | None:
        """Read a file; None if it isn't there, any more perhaps, or can't be understood."""
        try:
            return read_parsed(node, path, parse)
        except (NotHereError, VanishedError):
            return None
        except CcagentError as error:
            self._complain(path.rpartition("/")[2], error)
            return None

    def _names(self, node: Node, directory: str, form: re.Pattern[str]) -> list[str]:
        try:
            return sorted(filter(form.fullmatch, node.list(directory)))
        except NotHereError:
            return []
        except CcagentError as error:
            self._complain(form.pattern, error)
            return []

    def _complain(self, key: str, error: CcagentError) -> None:
        """Tell of the first of many files of one kind."""
        if key not in self._complained:
            self._complained.add(key)
            self.errors.append(str(error))
