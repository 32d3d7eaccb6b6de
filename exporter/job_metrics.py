"""Slurm's jobs under the names of ccagent, of cgroup_exporter 1.2, and of the CEEMS exporter.

A vocabulary is a table: each family with the rules for the values of a job.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import Columns, counter, gauge
from ccagent.machine.cgroup.jobs import ROOT
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.system import parse_meminfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ccagent.exporter.exposition import Family, FamilyRows, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import JobOnNode, NodeSources
    from ccagent.machine.node import Node

    Rule = tuple[Callable[[JobOnNode], float | None], Labels]
    """A value of a job, None without one, and the labels after those of the job."""
    Vocabulary = Sequence[tuple[Family, Sequence[Rule]]]

_NS, _US = 1e9, 1e6
_NO_LIMIT_V1 = 9223372036854771712
"""The kernel's number of a job without a limit."""
_NO_LIMIT_V2 = float(2**64)
"""cgroup_exporter's number of a job without a limit."""


def field_rule(name: str, divisor: float = 1, *more: str) -> Rule:
    """Return the rule for a field of JobCounters."""
    find = attrgetter(f"counters.{name}")
    if divisor == 1:
        return find, more

    def read(job: JobOnNode) -> float | None:
        value: int | None = find(job)
        return None if value is None else value / divisor

    return read, more


CPUS_RULE: Rule = (lambda job: len(job.cpus) or None, ())
"""The rule for the number of hwthreads that a job may use."""


def limit_rule(name: str, needs: str = "job", no_limit: float = _NO_LIMIT_V2) -> Rule:
    """Return the rule for a limit in B, present if the field `needs` of the job is.

    no_limit: the value of a job of version 2 without a limit.
    """

    def read(job: JobOnNode) -> float | None:
        if needs != "job" and getattr(job.counters, needs) is None:
            return None
        limit: int | None = getattr(job.counters, name)
        if limit is not None:
            return limit
        return no_limit if is_version_2(job.group) else _NO_LIMIT_V1

    return read, ()


def find_swap(job: JobOnNode) -> int | None:
    """Return the used swap space in B. Version 1 counts memory and swap together."""
    used = job.counters.swap_used
    if used is None or is_version_2(job.group):
        return used
    return max(0, used - (job.counters.mem_used or 0))


def find_rss(job: JobOnNode) -> int | None:
    """Return RSS in B as cgroup_exporter defines it: on version 2 with swap and page cache."""
    counters = job.counters
    if counters.mem_anon is None or not is_version_2(job.group):
        return counters.mem_anon
    return counters.mem_anon + (counters.mem_swapcached or 0) + (counters.mem_file or 0)


def is_version_2(group: str) -> bool:
    """Return whether a job's control group directory belongs to version 2.

    It begins with a slice there, with a controller in version 1.
    """
    return group.removeprefix(f"{ROOT}/").partition("/")[0].endswith(".slice")


def name_rows(
    vocabulary: Vocabulary, jobs: list[JobOnNode], labels: Mapping[int, Labels]
) -> Iterator[FamilyRows]:
    """Yield the families of a vocabulary. labels: of the jobs, by job id."""
    named = [labels[job.job] for job in jobs]
    for family, rules in vocabulary:
        own: list[Labels] = []
        values: list[float | None] = []
        for read, more in rules:
            own += [(*each, *more) for each in named] if more else named
            values += map(read, jobs)
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            own = [each for each, value in zip(own, values, strict=True) if value is not None]
        yield family, Columns(own, known)


_JOBS = gauge("ccagent_jobs", "Jobs of Slurm on this node.")
_LEFT_OUT = gauge(
    "ccagent_jobs_left_out", "Jobs on this node without series of their own: max-jobs is reached."
)
_INFO = gauge(
    "ccagent_job_info",
    "Always 1: the owner of the job; account, partition and name from the job's environment.",
    "jobid", "user", "account", "partition", "name",
)  # fmt: skip
_RESOURCES = ("cpu", "memory", "io")


def _counter(name: str, text: str, *rules: Rule) -> tuple[Family, Sequence[Rule]]:
    labels = ("jobid", *(("resource",) if rules[0][1] else ()))
    return counter(f"ccagent_job_{name}", text, *labels), rules


def _gauge(name: str, text: str, rule: Rule) -> tuple[Family, Sequence[Rule]]:
    return gauge(f"ccagent_job_{name}", text, "jobid"), (rule,)


_CCAGENT: Vocabulary = (
    _gauge("processes", "Processes of the job on this node.", (lambda job: len(job.pids), ())),
    _counter("cpu_seconds_total", "CPU time of the job on this node.", field_rule("cpu_time", _NS)),
    _counter("cpu_user_seconds_total", "CPU time in user mode.", field_rule("cpu_user", _NS)),
    _counter("cpu_system_seconds_total", "CPU time in the kernel.", field_rule("cpu_system", _NS)),
    _counter("cpu_throttled_seconds_total",
        "Time for which the job's quota stopped it, summed over hwthreads.",
        field_rule("cpu_throttled", _NS)),
    _gauge("cpus", "Hwthreads that the job may use.", CPUS_RULE),
    _gauge("memory_used_bytes",
        "Memory that counts towards the job's limit, its page cache included.",
        field_rule("mem_used")),
    _gauge("memory_peak_bytes", "Maximum of ccagent_job_memory_used_bytes.",
        field_rule("mem_peak")),
    _gauge("memory_rss_bytes",
        "Memory that the job's programs hold: anonymous and shared, no cache of files.",
        field_rule("mem_rss")),
    _gauge("memory_cache_bytes", "Page cache of the job, tmpfs included.", field_rule("mem_file")),
    _gauge("memory_limit_bytes", "Memory that the job may use.", field_rule("mem_limit")),
    _counter("oom_kills_total", "Processes of the job that the kernel's OOM killer has killed.",
        field_rule("oom_kills")),
    _counter("io_read_bytes_total", "Read from block devices, hence not from network file systems.",
        field_rule("io_read")),
    _counter("io_written_bytes_total",
        "Written to block devices, hence not to network file systems.", field_rule("io_write")),
    _gauge("memory_swap_bytes", "Swap space that the job uses.", (find_swap, ())),
    _counter("pressure_waiting_seconds_total",
        "Time in which a task of the job waited for the resource: cpu, memory, io.",
        *(field_rule(f"pressure_{resource}", _US, resource) for resource in _RESOURCES)),
    _counter("pressure_stalled_seconds_total",
        "Time in which no task of the job worked, since some waited for the resource.",
        *(field_rule(f"pressure_{resource}_full", _US, resource) for resource in _RESOURCES)),
)  # fmt: skip


class JobCollector(Collector):
    """Counters of the control groups of Slurm's jobs. The series of a job end with the job."""

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the control groups. Without jobs yield only the counts of jobs."""
        jobs, left_out = self.sources.find_jobs(node)
        yield _JOBS, [((), len(jobs) + left_out)]
        yield _LEFT_OUT, [((), left_out)]
        yield (
            _INFO,
            [
                ((str(job.job), owner.user, owner.account, owner.partition, owner.name), 1)
                for job in jobs
                for owner in (job.identity,)
            ],
        )
        yield from name_rows(_CCAGENT, jobs, {job.job: (str(job.job),) for job in jobs})


_TIMES: Vocabulary = tuple(
    (
        counter(f"cgroup_cpu_{name}_seconds", f"Cumulative CPU {text}seconds", "cgroup"),
        (field_rule(field, _NS),),
    )
    for name, text, field in (
        ("user", "user ", "cpu_user"), ("system", "system ", "cpu_system"),
        ("total", "", "cpu_time"),
    )
)  # fmt: skip
_CPUS = gauge("cgroup_cpus", "Number of CPUs in the cgroup", "cgroup")
_CPU_INFO = gauge("cgroup_cpu_info", "CPUs of the cgroup", "cgroup", "cpus")
_CGROUP_INFO = gauge(
    "cgroup_info", "User and job of the cgroup", "cgroup", "username", "uid", "jobid"
)
_CGROUP: Vocabulary = (
    *(
        (gauge(f"cgroup_{name}", text, "cgroup"), (rule,))
        for name, text, rule in (
            ("memory_rss_bytes", "Memory RSS used in bytes", (find_rss, ())),
            ("memory_cache_bytes", "Memory cache used in bytes", field_rule("mem_file")),
            ("memory_used_bytes", "Memory used in bytes", field_rule("mem_used")),
            ("memory_fail_count", "Memory fail count", field_rule("mem_failures")),
            ("memsw_used_bytes", "Swap used in bytes", field_rule("swap_used")),
            ("memsw_fail_count", "Swap fail count", field_rule("swap_failures")),
            ("memory_total_bytes", "Memory given to the cgroup in bytes", limit_rule("mem_limit")),
            (
                "memsw_total_bytes",
                "Swap given to the cgroup in bytes",
                limit_rule("swap_limit", "swap_used"),
            ),
        )
    ),
    *(
        (
            counter(
                f"cgroup_{resource}_pressure_seconds_total",
                f"Total time of {resource} pressure in seconds", "cgroup", "type",
            ),
            (
                field_rule(f"pressure_{resource}", _US, "some"),
                field_rule(f"pressure_{resource}_full", _US, "full"),
            ),
        )
        for resource in _RESOURCES
    ),
)  # fmt: skip


class CgroupExporterCollector(Collector):
    """Job metrics as cgroup_exporter exposes them."""

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the control groups of jobs. Raise NotHereError if Slurm has created none."""
        jobs, _ = self.sources.jobs.get(node)
        names: dict[int, Labels] = {job.job: (name_group(job.group),) for job in jobs}
        yield from name_rows(_TIMES, jobs, names)
        yield _CPUS, [(names[job.job], len(job.cpus)) for job in jobs]
        yield (
            _CPU_INFO,
            [((*names[job.job], ",".join(map(str, job.cpus))), 1) for job in jobs],
        )
        yield from name_rows(_CGROUP, jobs, names)
        yield (
            _CGROUP_INFO,
            [
                ((*names[job.job], job.identity.user, str(job.identity.uid), str(job.job)), 1)
                for job in jobs
            ],
        )


def name_group(path: str) -> str:
    """Return the path of a control group below its hierarchy's root: `/slurm/uid_1/job_2`."""
    rest = path.removeprefix(f"{ROOT}/")
    return f"/{rest}" if is_version_2(path) else f"/{rest.partition('/')[2]}"


_UNIT = ("manager", "hostname", "cgrouphostname", "uuid")
_PREFIX = "ceems_compute_unit"
_UNITS = gauge("ceems_compute_units", "Total number of jobs", "manager", "hostname")
_CEEMS: Vocabulary = (
    *(
        (counter(f"{_PREFIX}_cpu_{mode}_seconds_total", f"Total job CPU {mode} seconds", *_UNIT),
         (field_rule(f"cpu_{mode}", _NS),))
        for mode in ("user", "system")
    ),
    *(
        (gauge(f"{_PREFIX}_{name}", text, *_UNIT), (rule,))
        for name, text, rule in (
            ("cpus", "Total number of job CPUs", CPUS_RULE),
            ("cpu_psi_seconds", "Total CPU PSI in seconds", field_rule("pressure_cpu_full", _US)),
            ("memory_psi_seconds", "Total memory PSI in seconds",
             field_rule("pressure_memory_full", _US)),
            ("memory_cache_bytes", "Memory cache used in bytes", field_rule("mem_file")),
            ("memory_used_bytes", "Memory used in bytes", field_rule("mem_used")),
            ("memory_fail_count", "Memory fail count", field_rule("mem_failures")),
            ("memsw_used_bytes", "Swap used in bytes", field_rule("swap_used")),
            ("memsw_fail_count", "Swap fail count", field_rule("swap_failures")),
            ("memory_rss_bytes", "Memory RSS used in bytes", field_rule("mem_anon")),
        )
    ),
)  # fmt: skip
_MEMORY_TOTAL = gauge(f"{_PREFIX}_memory_total_bytes", "Memory total in bytes", *_UNIT)
_SWAP_TOTAL = gauge(f"{_PREFIX}_memsw_total_bytes", "Swap total in bytes", *_UNIT)
_IO = tuple(
    gauge(f"{_PREFIX}_blkio_{way}_total_{what}", f"Total block IO {way} {what}", *_UNIT, "device")
    for what in ("bytes", "requests")
    for way in ("read", "write")
)
_GPU = gauge(
    f"{_PREFIX}_gpu_index_flag", "A value > 0 indicates the job using current GPU",
    *_UNIT, "index", "hindex", "gpuuuid", "gpuiid",
)  # fmt: skip
_MOST_DEVICES = 256


def _find_ceems_limits(node: Node) -> Vocabulary:
    """Return the families of limits. Without one, a job may use what the node has."""
    try:
        sizes = read_parsed(node, "proc/meminfo", parse_meminfo)
    except CcagentError:
        sizes = {}
    memory = sizes.get("MemTotal", 0) * 1024 or _NO_LIMIT_V2
    swap = sizes.get("SwapTotal", 0) * 1024 or memory
    return (
        (_MEMORY_TOTAL, (limit_rule("mem_limit", no_limit=memory),)),
        (_SWAP_TOTAL, (limit_rule("swap_limit", "swap_used", swap),)),
    )


class CeemsCollector(Collector):
    """Job metrics as the CEEMS exporter exposes them."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._devices: dict[str, str] = {}

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the control groups of jobs. Raise NotHereError if Slurm has created none."""
        jobs, left_out = self.sources.jobs.get(node)
        yield _UNITS, [(("slurm", node.hostname), len(jobs) + left_out)]
        labels: dict[int, Labels] = {
            job.job: ("slurm", node.hostname, job.slurmd, str(job.job)) for job in jobs
        }
        yield from name_rows(_CEEMS, jobs, labels)
        yield from name_rows(_find_ceems_limits(node), jobs, labels)
        rows: list[list[tuple[Labels, float]]] = [[] for _ in _IO]
        for job in jobs:
            for device, values in job.devices.items():
                own = (*labels[job.job], self._name_device(node, device))
                for column, value in zip(rows, values, strict=False):
                    column.append((own, value))
        yield from zip(_IO, rows, strict=True)
        yield _GPU, self._flags(node, labels)

    def _name_device(self, node: Node, device: str) -> str:
        name = self._devices.get(device)
        if name is None:
            if len(self._devices) >= _MOST_DEVICES:
                self._devices.clear()
            path = f"sys/dev/block/{device}"
            name = node.resolve(path).rpartition("/")[2] if node.exists(path) else device
            self._devices[device] = name
        return name

    def _flags(self, node: Node, labels: dict[int, Labels]) -> list[tuple[Labels, float]]:
        try:
            cards = self.sources.cards.get(node)
        except CcagentError:
            return []
        uuids = {card.index: card.uuid for card in cards.reading.cards}
        return [
            ((*labels[owner.job], str(card), f"{node.hostname}/gpu-{card}", uuids[card], ""), 1)
            for owner in cards.allocations
            for card in owner.cards
            if owner.job in labels and card in uuids
        ]
