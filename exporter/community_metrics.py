"""Slurm's jobs and their cards under the names that three communities' dashboards ask for.

`jobstats`: of plazonic's cgroup_exporter and nvidia_gpu_prometheus_exporter, which Princeton's
jobstats reads. `slurm-job-exporter`: of guilbaults' exporter. `omnistat`: of ROCm's Omnistat, for
AMD's cards, the jobs and the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError
from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import counter, gauge
from ccagent.exporter.gpu_metrics import NVIDIA, find_details, find_minors, lacks
from ccagent.exporter.job_metrics import (
    CPUS_RULE,
    field_rule,
    limit_rule,
    name_rows,
)
from ccagent.machine.gpu.vendor import PER_PERCENT
from ccagent.machine.parsed import FileErrors
from ccagent.machine.procfs.system import parse_kernel_stat, parse_loadavg, parse_meminfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.exposition import Family, FamilyRows, Labels
    from ccagent.exporter.job_metrics import Rule, Vocabulary
    from ccagent.exporter.sources import CardsOnNode, JobOnNode
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SampleGpu

_NS = 1e9
_NO_LIMIT = -1
"""cgroup_exporter's number of a job without a limit, on version 2."""


def find_held_memory(job: JobOnNode) -> int | None:
    """Return anonymous memory and what of the swap space is in memory, in B."""
    anonymous = job.counters.mem_anon
    return None if anonymous is None else anonymous + (job.counters.mem_swapcached or 0)


def find_shared_memory(job: JobOnNode) -> int | None:
    """Return shared memory in B; of version 1 before Linux 4.13 the cache of no file."""
    counters = job.counters
    cache, active, inactive = (
        counters.mem_file, counters.mem_active_file, counters.mem_inactive_file,
    )  # fmt: skip
    if counters.mem_shmem is not None or cache is None or active is None or inactive is None:
        return counters.mem_shmem
    return max(0, cache - active - inactive)


def _cgroup(name: str, text: str, rule: Rule) -> tuple[Family, tuple[Rule]]:
    return gauge(f"cgroup_{name}", text, "jobid", "step", "task"), (rule,)


_CGROUP: Vocabulary = (
    _cgroup("cpu_user_seconds", "Cumulative CPU user seconds for jobid",
        field_rule("cpu_user", _NS)),
    _cgroup("cpu_system_seconds", "Cumulative CPU system seconds for jobid",
        field_rule("cpu_system", _NS)),
    _cgroup("cpu_total_seconds", "Cumulative CPU total seconds for jobid",
        field_rule("cpu_time", _NS)),
    _cgroup("cpus", "Number of CPUs in the jobid", CPUS_RULE),
    _cgroup("memory_rss_bytes", "Memory RSS used in bytes", (find_held_memory, ())),
    _cgroup("memory_cache_bytes", "Memory cache used in bytes", field_rule("mem_file")),
    _cgroup("memory_shmem_bytes", "Memory cache used in bytes", (find_shared_memory, ())),
    _cgroup("memory_used_bytes", "Memory used in bytes", field_rule("mem_used")),
    _cgroup("memory_total_bytes", "Memory total given to jobid in bytes",
        limit_rule("mem_limit", no_limit=_NO_LIMIT)),
    _cgroup("memory_fail_count", "Memory fail count", field_rule("mem_failures")),
    _cgroup("memsw_used_bytes", "Swap used in bytes", field_rule("swap_used")),
    _cgroup("memsw_total_bytes", "Swap total given to jobid in bytes",
        limit_rule("swap_limit", "swap_used", _NO_LIMIT)),
    _cgroup("memsw_fail_count", "Swap fail count", field_rule("swap_failures")),
)  # fmt: skip
_UID = gauge("cgroup_uid", "Uid number of user running this job", "jobid")
_OWNER = gauge(
    "cgroup_info",
    "Static info about the job: owning uid and username, resolved via /proc + NSS",
    "jobid", "uid", "username",
)  # fmt: skip
_DEVICES = gauge("nvidia_gpu_num_devices", "Number of GPU devices")
_CARD_LABELS = ("ordinal", "minor_number", "uuid", "name", "GPU_I_ID", "jobid", "userid")
_CARD = {
    field: (gauge(f"nvidia_gpu_{name}", text, *_CARD_LABELS), factor)
    for field, name, factor, text in (
        ("memory", "memory_used_bytes", 1024, "Memory used by the GPU device in bytes"),
        ("ce_util", "duty_cycle", 1, ("Percent of time over the past sample period during which"
            " one or more kernels were executing on the GPU device")),
        ("power", "power_usage_milliwatts", 1000, "Power usage of the GPU device in milliwatts"),
        ("temperature", "temperature_celsius", 1, "Temperature of the GPU device in celsius"),
        ("fan", "fanspeed_percent", 1, "Fanspeed of the GPU device as a percent of its maximum"),
    )
}  # fmt: skip
_CARD_MEMORY = gauge(
    "nvidia_gpu_memory_total_bytes", "Total memory of the GPU device in bytes", *_CARD_LABELS
)
_CLOCK = gauge("nvidia_gpu_clock", "Clock speed", *_CARD_LABELS, "type")
_CLOCKS = (("ce_clock", "sm"), ("memory_clock", "mem"))
_JOB_OF_CARD = gauge(
    "nvidia_gpu_jobId", "JobId number of a job currently using this GPU as reported by Slurm",
    *_CARD_LABELS,
)  # fmt: skip
_USER_OF_CARD = gauge(
    "nvidia_gpu_jobUid", "Uid number of user running jobs on this GPU", *_CARD_LABELS
)
_ACTIVITY = (
    *(
        (detail, 100 * PER_PERCENT, gauge(f"nvidia_gpu_{name}", text, *_CARD_LABELS))
        for detail, name, text in (
            ("graphics_active", "graphics_util_percent",
                "Percentage of time any compute/graphics app was active on the GPU"),
            ("sm_active", "sm_util_percent", "Percentage of SMs that were busy"),
            ("sm_occupancy", "sm_occupancy_percent",
                "Percentage of warps that were active vs theoretical maximum"),
            ("tensor_active", "any_tensor_util_percent",
                "Percentage of time the GPU's SMs were doing ANY tensor operations"),
            ("dram_active", "dram_bw_util_percent",
                "Percentage of DRAM bw used vs theoretical maximum"),
            *(
                (f"fp{n}_active", f"fp{n}_util_percent",
                    f"Percentage of time the GPU's SMs were doing non-tensor FP{n} math")
                for n in (64, 32, 16)
            ),
        )
    ),
    *(
        (detail, 1, gauge(f"nvidia_gpu_{name}_per_sec", f"{text} in bytes/sec", *_CARD_LABELS))
        for detail, name, text in (
            ("gpm_pcie_tx", "pcie_tx", "PCIe traffic from this GPU"),
            ("gpm_pcie_rx", "pcie_rx", "PCIe traffic to this GPU"),
            ("gpm_nvlink_rx", "nvlink_total_rx", "NvLink read bandwidth for all links"),
            ("gpm_nvlink_tx", "nvlink_total_tx", "NvLink write bandwidth for all links"),
        )
    ),
)  # fmt: skip
"""Details of a card by NVML's GPM, as shares of 1 despite their name, as there."""


class JobstatsCollector(Collector):
    """Jobs and NVIDIA cards as Princeton's jobstats asks for them."""

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the control groups of jobs, and the cards. Raise NotHereError without both."""
        jobs, _ = self.sources.find_jobs(node)
        cards = find_cards(self, node)
        if not jobs and cards is None:
            raise NotHereError("neither a job of Slurm nor a card")
        yield from name_rows(_CGROUP, jobs, {job.job: (str(job.job), "", "") for job in jobs})
        owners = [(str(job.job), job.identity) for job in jobs if job.identity.uid >= 0]
        yield _UID, [((job,), owner.uid) for job, owner in owners]
        yield _OWNER, [((job, str(owner.uid), owner.user), 1) for job, owner in owners]
        if cards is not None:
            yield from _name_cards(cards)


def find_cards(collector: Collector, node: Node) -> CardsOnNode | None:
    """Return the cards; None without a card, or if they can't be read."""
    try:
        return collector.sources.cards.get(node)
    except NotHereError:
        return None
    except CcagentError as error:
        collector.warn(str(error))
        return None


def has_value(cards: CardsOnNode, card: SampleGpu, field: str) -> bool:
    """Return whether a card reports a value. An instance has only its own memory."""
    is_own = field == "memory" or card.index not in cards.reading.instances
    return is_own and not lacks(cards, card, field)


def _name_cards(cards: CardsOnNode) -> Iterator[FamilyRows]:
    reading = cards.reading
    minors = find_minors(reading)
    owners: dict[int, list[tuple[str, str]]] = {}
    for each in cards.allocations:
        for index in each.cards:
            owners.setdefault(index, []).append((str(each.job), str(each.uid)))
    shown: list[tuple[SampleGpu, Labels]] = []
    for card in reading.cards:
        known = cards.descriptions.get(card.index)
        if known is None or known.manufacturer != NVIDIA or card.failing:
            continue
        words = (str(card.index), minors.get(card.index, ""), card.uuid, known.model, "")
        shown += [(card, (*words, *owner)) for owner in owners.get(card.index, [("", "")])]
    yield _DEVICES, [((), len({card.index for card, _ in shown}))]
    for field, (family, factor) in _CARD.items():
        yield (
            family,
            [
                (labels, getattr(card, field) * factor)
                for card, labels in shown
                if has_value(cards, card, field)
            ],
        )
    yield (
        _CARD_MEMORY,
        [(labels, cards.descriptions[card.index].memory * 1024) for card, labels in shown],
    )
    yield (
        _CLOCK,
        [
            ((*labels, name), getattr(card, field))
            for card, labels in shown
            for field, name in _CLOCKS
            if has_value(cards, card, field)
        ],
    )
    ordinals = {card.index: labels[:1] for card, labels in shown}
    for name, divisor, family in _ACTIVITY:
        values = dict(find_details(reading, ordinals, name, divisor))
        yield family, [(own, values[own[:1]]) for _, own in shown if own[:1] in values]
    taken = [labels for _, labels in shown if labels[-2]]
    yield _JOB_OF_CARD, [(labels, int(labels[-2])) for labels in taken]
    yield _USER_OF_CARD, [(labels, int(labels[-1])) for labels in taken]


_OWN_LABELS = ("user", "account", "slurmjobid")


def _of_job(name: str, text: str, rule: Rule) -> tuple[Family, tuple[Rule]]:
    return gauge(f"slurm_job_{name}", text, *_OWN_LABELS), (rule,)


_SLURM_JOB: Vocabulary = (
    _of_job("memory_usage", "Memory used by a job", field_rule("mem_used")),
    _of_job("memory_max", "Maximum memory used by a job", field_rule("mem_peak")),
    _of_job("memory_limit", "Memory limit of a job", field_rule("mem_limit")),
    _of_job("memory_cache", "bytes of page cache memory", field_rule("mem_file")),
    _of_job("memory_rss",
        "bytes of anonymous and swap cache memory (includes transparent hugepages).",
        (find_held_memory, ())),
    _of_job("memory_rss_huge", "bytes of anonymous transparent hugepages",
        field_rule("mem_huge")),
    _of_job("memory_mapped_file", "bytes of mapped file (includes tmpfs/shmem)",
        field_rule("mem_mapped")),
    *(
        _of_job(f"memory_{name}", text, field_rule(f"mem_{name}"))
        for name, text in (
            ("active_file", "bytes of file-backed memory on active LRU list"),
            ("inactive_file", "bytes of file-backed memory on inactive LRU list"),
            ("unevictable", "bytes of memory that cannot be reclaimed"),
        )
    ),
    _of_job("process_count", "Number of processes in a job", (lambda job: len(job.pids), ())),
)  # fmt: skip
_CORE = counter(
    "slurm_job_core_usage_total", "Cpu usage of cores allocated to a job", *_OWN_LABELS, "core"
)
_GPU_LABELS = (*_OWN_LABELS, "gpu", "gpu_type")
_GPU = {
    field: (gauge(f"slurm_job_{name}", text, *_GPU_LABELS), factor)
    for field, name, factor, text in (
        ("memory", "memory_usage_gpu", 1024, "Memory used by a job on a GPU"),
        ("power", "power_gpu", 1000, "Power used by a job on a GPU in mW"),
        ("ce_util", "utilization_gpu", 1, ("Percent of time over the past sample period during"
            " which one or more kernels was executing on the GPU.")),
    )
}  # fmt: skip
_GPU_DETAILS = (
    ("mem_utilization", 1, gauge("slurm_job_utilization_gpu_memory",
        "Percent of time in which the memory of the GPU was read or written", *_GPU_LABELS)),
    *(
        (detail, PER_PERCENT, gauge(f"slurm_job_{name}_gpu", f"Percent {text}", *_GPU_LABELS))
        for detail, name, text in (
            ("sm_occupancy", "sm_occupancy", "of the warps that fit on an SM"),
            ("tensor_active", "tensor", "of cycles in which the tensor pipe was active"),
            *((f"fp{n}_active", f"fp{n}", f"of cycles of the fp{n} pipe") for n in (64, 32, 16)),
        )
    ),
)  # fmt: skip
_GPU_TRAFFIC = {
    link: gauge(f"slurm_job_{link}_gpu", "Bytes per second", *_GPU_LABELS, "direction")
    for link in ("nvlink", "pcie")
}
_GPU_MEMORY = gauge("slurm_job_memory_total_gpu", "Memory available on a GPU", *_GPU_LABELS)


class SlurmJobExporterCollector(Collector):
    """Jobs and their cards as slurm-job-exporter exposes them."""

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the control groups of jobs. Raise NotHereError if Slurm has created none."""
        jobs, _ = self.sources.jobs.get(node)
        labels: dict[int, Labels] = {
            job.job: (job.identity.user, job.identity.account, str(job.job)) for job in jobs
        }
        yield from name_rows(_SLURM_JOB, jobs, labels)
        cores: list[tuple[Labels, float]] = []
        for job in jobs:
            # The kernel has no time by job and hwthread on version 2: it is divided evenly.
            used = job.counters.cpu_time
            if used is not None:
                share = used / max(1, len(job.cpus))
                cores += [((*labels[job.job], str(cpu)), share) for cpu in job.cpus]
        yield _CORE, cores
        cards = find_cards(self, node)
        if cards is not None:
            yield from self._name_cards(cards, labels)

    def _name_cards(self, cards: CardsOnNode, labels: dict[int, Labels]) -> Iterator[FamilyRows]:
        states = {card.index: card for card in cards.reading.cards if not card.failing}
        shown = [
            (states[index], (*labels[each.job], str(index), cards.descriptions[index].model))
            for each in cards.allocations
            for index in each.cards
            if each.job in labels and index in states and index in cards.descriptions
        ]
        for field, (family, factor) in _GPU.items():
            yield (
                family,
                [
                    (own, getattr(card, field) * factor)
                    for card, own in shown
                    if has_value(cards, card, field)
                ],
            )
        yield (
            _GPU_MEMORY,
            [(own, cards.descriptions[card.index].memory * 1024) for card, own in shown],
        )
        details = [
            (own, {each.name: each.value for each in found if not each.part})
            for card, own in shown
            if (found := cards.reading.details.get(card.index))
        ]
        for name, divisor, family in _GPU_DETAILS:
            yield family, [(own, has[name] / divisor) for own, has in details if name in has]
        for link, family in _GPU_TRAFFIC.items():
            yield (
                family,
                [
                    ((*own, way), has[f"gpm_{link}_{way.lower()}"])
                    for own, has in details
                    for way in ("TX", "RX")
                    if f"gpm_{link}_{way.lower()}" in has
                ],
            )


_AMD = "AMD"
_ROCM_STATES = tuple(
    (field, gauge(f"rocm_{name}", text, "card"))
    for field, name, text in (
        ("ce_util", "utilization_percentage", "GPU utilization (%)"),
        ("power", "average_socket_power_watts", "Average socket power (W)"),
        ("power_limit", "power_cap_watts", "Max power cap of device (W)"),
        ("ce_clock", "sclk_clock_mhz", "Clock of the compute units (MHz)"),
        ("memory_clock", "mclk_clock_mhz", "Memory clock (MHz)"),
    )
)
_ROCM_DETAILS = tuple(
    (detail, divisor, gauge(f"rocm_{name}", text, "card"))
    for detail, divisor, name, text in (
        ("mem_utilization", 1, "vram_busy_percentage", "Memory controller activity (%)"),
        ("energy", 1000, "energy_joules", "Energy since the driver was loaded (J)"),
        ("xgmi_rx", 1, "xgmi_total_read_kilobytes", "Data read over XGMI, all links (KB)"),
        ("xgmi_tx", 1, "xgmi_total_write_kilobytes", "Data written over XGMI, all links (KB)"),
    )
)
_ROCM_CARDS = gauge("rocm_num_gpus", "# of GPUS available on host")
_ROCM_VERSION = gauge(
    "rocm_version_info", "GPU versioning information",
    "card", "driver_ver", "vbios", "type", "serial",
)  # fmt: skip
_ROCM_TEMPERATURE = gauge("rocm_temperature_celsius", "Temperature (C)", "card", "location")
_ROCM_TOTAL = gauge("rocm_vram_total_bytes", "Size of the memory in B", "card")
_ROCM_USED = gauge("rocm_vram_used_percentage", "VRAM Memory in Use (%)", "card")
_RMS_JOB = gauge(
    "rmsjob_info", "RMS job details",
    "jobid", "user", "partition", "nodes", "batchflag", "jobstep", "type",
)  # fmt: skip
_HOST = {
    name: gauge(f"omnistat_host_{name}", text)
    for name, text in (
        ("boot_time_seconds", "Time of the boot in seconds since 1970"),
        ("cpu_load1", "1-minute load average"),
        ("cpu_num_logical_cores", "Number of logical cores"),
        ("mem_total_bytes", "Total host memory"),
        ("mem_free_bytes", "Free host memory"),
        ("mem_available_bytes", "Available host memory"),
    )
}


class OmnistatCollector(Collector):
    """AMD's cards, Slurm's jobs and the node, as Omnistat exposes them."""

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the node, the control groups of jobs, and the cards."""
        yield from name_host(self, node)
        jobs, _ = self.sources.find_jobs(node)
        yield (
            _RMS_JOB,
            [
                ((str(job.job), who.user, who.partition, "", "", "", "slurm"), 1)
                for job in jobs
                for who in (job.identity,)
            ],
        )
        cards = find_cards(self, node)
        if cards is not None:
            yield from name_rocm_cards(cards)


def name_host(collector: Collector, node: Node) -> Iterator[FamilyRows]:
    """Yield the metrics of the node, without those of a file that can't be read."""
    files = FileErrors()
    kernel = files.try_parsed(node, "proc/stat", parse_kernel_stat)
    load = files.try_parsed(node, "proc/loadavg", parse_loadavg)
    memory = files.try_parsed(node, "proc/meminfo", parse_meminfo) or {}
    for problem in files.errors:
        collector.warn(problem)
    values: dict[str, float | None] = {
        "boot_time_seconds": None if kernel is None else kernel.boot,
        "cpu_num_logical_cores": None if kernel is None else len(kernel.times),
        "cpu_load1": None if load is None else load[0],
    }
    for field in ("total", "free", "available"):
        size = memory.get(f"Mem{field.capitalize()}")
        values[f"mem_{field}_bytes"] = None if size is None else size * 1024
    for name, family in _HOST.items():
        value = values[name]
        if value is not None:
            yield family, [((), value)]


def name_rocm_cards(cards: CardsOnNode) -> Iterator[FamilyRows]:
    """Yield the metrics of AMD's cards; a failing card only counts."""
    reading = cards.reading
    known = {index: it for index, it in cards.descriptions.items() if it.manufacturer == _AMD}
    if not known:
        return
    labels: dict[int, Labels] = {index: (str(index),) for index in known}
    yield _ROCM_CARDS, [((), len(known))]
    yield (
        _ROCM_VERSION,
        [((str(index), it.driver, it.firmware, it.model, ""), 1) for index, it in known.items()],
    )
    shown = [card for card in reading.cards if card.index in known and not card.failing]
    for field, family in _ROCM_STATES:
        yield (
            family,
            [
                (labels[card.index], getattr(card, field))
                for card in shown
                if has_value(cards, card, field)
            ],
        )
    yield (
        _ROCM_TEMPERATURE,
        [((str(card.index), ""), card.temperature) for card in shown if card.temperature],
    )
    sizes = {index: it.memory for index, it in known.items() if it.memory}
    yield _ROCM_TOTAL, [(labels[index], size * 1024) for index, size in sizes.items()]
    yield (
        _ROCM_USED,
        [
            (labels[card.index], 100 * card.memory / sizes[card.index])
            for card in shown
            if card.index in sizes and has_value(cards, card, "memory")
        ],
    )
    for name, divisor, family in _ROCM_DETAILS:
        yield family, find_details(reading, labels, name, divisor)
