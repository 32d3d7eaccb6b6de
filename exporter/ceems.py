"""Job metrics under the names of the CEEMS exporter for compute units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import CcagentError
from ccagent.exporter.cgroup_exporter import find_rss, limit_of
from ccagent.exporter.collector import Collector
from ccagent.exporter.family import counter, gauge
from ccagent.exporter.job_metrics import counter_rows, is_version_2
from ccagent.machine.parsed import read_parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.family import Family, Labels, Rows
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import JobOnNode, NodeSources
    from ccagent.machine.node import Node

_UNIT = ("manager", "hostname", "cgrouphostname", "uuid")
_PREFIX = "ceems_compute_unit"
_UNITS = gauge("ceems_compute_units", "Total number of jobs", "manager", "hostname")
_VALUES = (
    ("cpu_user", counter(f"{_PREFIX}_cpu_user_seconds_total", "Total job CPU user seconds", *_UNIT),
     1e9),
    ("cpu_system",
     counter(f"{_PREFIX}_cpu_system_seconds_total", "Total job CPU system seconds", *_UNIT), 1e9),
    ("cpus", gauge(f"{_PREFIX}_cpus", "Total number of job CPUs", *_UNIT), 1),
    ("pressure_cpu_full", gauge(f"{_PREFIX}_cpu_psi_seconds", "Total CPU PSI in seconds", *_UNIT),
     1e6),
    ("pressure_memory_full",
     gauge(f"{_PREFIX}_memory_psi_seconds", "Total memory PSI in seconds", *_UNIT), 1e6),
    ("mem_file", gauge(f"{_PREFIX}_memory_cache_bytes", "Memory cache used in bytes", *_UNIT), 1),
    ("mem_used", gauge(f"{_PREFIX}_memory_used_bytes", "Memory used in bytes", *_UNIT), 1),
    ("mem_failures", gauge(f"{_PREFIX}_memory_fail_count", "Memory fail count", *_UNIT), 1),
    ("swap_used", gauge(f"{_PREFIX}_memsw_used_bytes", "Swap used in bytes", *_UNIT), 1),
    ("swap_failures", gauge(f"{_PREFIX}_memsw_fail_count", "Swap fail count", *_UNIT), 1),
)  # fmt: skip
_RSS = gauge(f"{_PREFIX}_memory_rss_bytes", "Memory RSS used in bytes", *_UNIT)
_TOTAL = gauge(f"{_PREFIX}_memory_total_bytes", "Memory total in bytes", *_UNIT)
_SWAP_TOTAL = gauge(f"{_PREFIX}_memsw_total_bytes", "Swap total in bytes", *_UNIT)
_IO = tuple(
    gauge(f"{_PREFIX}_blkio_{way}_total_{what}", f"Total block IO {way} {what}", *_UNIT, "device")
    for what in ("bytes", "requests")
    for way in ("read", "write")
)
_IO_FIELDS = (b"rbytes", b"wbytes", b"rios", b"wios")
_GPU = gauge(
    f"{_PREFIX}_gpu_index_flag", "A value > 0 indicates the job using current GPU",
    *_UNIT, "index", "hindex", "gpuuuid", "gpuiid",
)  # fmt: skip
_MOST_DEVICES = 256


class CeemsCollector(Collector):
    """Job metrics as the CEEMS exporter exposes them."""

    name = "ceems"

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._devices: dict[bytes, str] = {}

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
        """Read the control groups of jobs. Raise NotHereError if Slurm has created none."""
        jobs, left_out = self.sources.jobs.get(node)
        yield _UNITS, [(("slurm", node.hostname), len(jobs) + left_out)]
        labels: dict[int, Labels] = {
            each.job: ("slurm", node.hostname, "", str(each.job)) for each in jobs
        }
        yield from counter_rows(_VALUES, jobs, labels)
        yield (
            _RSS,
            [(labels[each.job], rss) for each in jobs if (rss := find_rss(each)) is not None],
        )
        yield _TOTAL, [(labels[each.job], limit_of(each, each.counters.mem_limit)) for each in jobs]
        yield (
            _SWAP_TOTAL,
            [
                (labels[each.job], limit_of(each, each.counters.swap_limit))
                for each in jobs
                if each.counters.swap_used is not None
            ],
        )
        yield from self._io(node, jobs, labels)
        yield _GPU, self._flags(node, labels)

    def _io(
        self, node: Node, jobs: list[JobOnNode], labels: dict[int, Labels]
    ) -> Iterator[tuple[Family, Rows]]:
        rows: list[list[tuple[Labels, float]]] = [[] for _ in _IO]
        for each in jobs:
            if not is_version_2(each.group):
                continue
            try:
                devices = read_parsed(node, f"{each.group}/io.stat", parse_io_stat)
            except CcagentError:
                continue
            for device, values in devices.items():
                own = (*labels[each.job], self._name_device(node, device))
                for column, value in enumerate(values):
                    rows[column].append((own, value))
        yield from zip(_IO, rows, strict=True)

    def _name_device(self, node: Node, device: bytes) -> str:
        name = self._devices.get(device)
        if name is None:
            if len(self._devices) >= _MOST_DEVICES:
                self._devices.clear()
            number = device.decode("ascii", "replace")
            path = f"sys/dev/block/{number}"
            name = node.resolve(path).rpartition("/")[2] if node.exists(path) else number
            self._devices[device] = name
        return name

    def _flags(self, node: Node, labels: dict[int, Labels]) -> list[tuple[Labels, float]]:
        try:
            cards = self.sources.cards.get(node)
        except CcagentError:
            return []
        uuids = {card.index: card.uuid for card in cards.reading.cards}
        rows: list[tuple[Labels, float]] = []
        for each in cards.allocations:
            for index in each.cards:
                if each.job in labels and index in uuids:
                    own = (str(index), f"{node.hostname}/gpu-{index}", uuids[index], "")
                    rows.append(((*labels[each.job], *own), 1))
        return rows


def parse_io_stat(content: bytes) -> dict[bytes, tuple[int, ...]]:
    """Parse io.stat: bytes read and written, read and write requests, by `major:minor`."""
    found: dict[bytes, tuple[int, ...]] = {}
    for line in content.split(b"\n"):
        device, *pairs = line.split() or (b"",)
        values = {name: value for name, _, value in (pair.partition(b"=") for pair in pairs)}
        if b":" in device and all(values.get(key, b"").isdigit() for key in _IO_FIELDS):
            found[device] = tuple(int(values[key]) for key in _IO_FIELDS)
    return found
