"""GPUs under the names of ccagent and of dcgm-exporter; files of the jobs of cards.

The files are for dcgm-exporter's option --hpc-job-mapping-dir. The name of a file is the number of
a card, or `CARD.INSTANCE`. Each line is a job id.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
from typing import TYPE_CHECKING

from ccagent.agents.sonar.jobs.allocations import idle_cards
from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import Family, counter, gauge
from ccagent.log import logger
from ccagent.machine.gpu.vendor import GPU_INSTANCE, PER_PERCENT
from ccagent.service.private_directories import open_directory
from ccagent.service.private_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccagent.exporter.exposition import FamilyRows, Kind, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import CardsOnNode, NodeSources
    from ccagent.machine.gpu.gpus import GpuReading
    from ccagent.machine.node import Node
    from ccagent.records.envelopes import SampleGpu


_CARD = ("gpu", "uuid")
_INFO = gauge(
    "ccagent_gpu_info", "Always 1: vendor and model of a card.",
    *_CARD, "address", "vendor", "model", "driver",
)  # fmt: skip
_FAILING = gauge("ccagent_gpu_failing", "1 for a card that does not answer.", *_CARD)
_ENERGY = counter("ccagent_gpu_energy_joules_total", "Energy since the driver was loaded.", *_CARD)
_JOB = gauge("ccagent_gpu_job", "Always 1: the card is allocated to the job.", *_CARD, "jobid")
_ALLOCATED = gauge("ccagent_job_gpus", "Cards on this node allocated to the job.", "jobid")
_USED = gauge(
    "ccagent_job_gpus_used", "Cards of the job that its processes use at this moment.", "jobid"
)
_IDLE = gauge(
    "ccagent_job_gpus_idle", "Cards of the job that no process of it uses at this moment.", "jobid"
)
_VALUES = (
    ("ce_util", gauge("ccagent_gpu_utilization_ratio", "Share of time in which a kernel ran.",
                      *_CARD), 0.01),
    ("memory", gauge("ccagent_gpu_memory_used_bytes", "Memory in use.", *_CARD), 1024),
    ("temperature", gauge("ccagent_gpu_temperature_celsius", "Temperature.", *_CARD), 1),
    ("power", gauge("ccagent_gpu_power_watts", "Power.", *_CARD), 1),
    ("power_limit", gauge("ccagent_gpu_power_limit_watts", "Limit of the power.", *_CARD), 1),
    ("ce_clock", gauge("ccagent_gpu_clock_hertz", "Clock of the compute units.", *_CARD), 1e6),
    ("memory_clock", gauge("ccagent_gpu_memory_clock_hertz", "Clock of the memory.", *_CARD), 1e6),
    ("fan", gauge("ccagent_gpu_fan_ratio", "Speed of the fan.", *_CARD), 0.01),
)  # fmt: skip
_ACTIVITY = {
    name: gauge(f"ccagent_gpu_{name}_ratio", text, *_CARD)
    for name, text in (
        ("graphics_active", "Share of time in which a kernel or a graphics program ran."),
        ("sm_active", "Share of the SMs that were busy, mean since the previous scrape."),
        ("sm_occupancy", "Share of the maximum of warps that were active."),
        ("tensor_active", "Share of tensor operations of any kind."),
        ("dram_active", "Share of the maximum bandwidth of the memory."),
    )
}
"""NVML's GPM, also of MIG instances."""
_TOTAL = gauge("ccagent_gpu_memory_bytes", "Size of the memory.", *_CARD)


class GpuCollector(Collector):
    """Cards of all vendors, and their allocation to jobs."""

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the cards through the vendors' libraries. Raise NotHereError without a card."""
        cards = self.sources.cards.get(node)
        reading = cards.reading
        labels = {card.index: (str(card.index), card.uuid) for card in reading.cards}
        infos: list[tuple[Labels, float]] = []
        totals: list[tuple[Labels, float]] = []
        for index, own in labels.items():
            known = cards.descriptions.get(index)
            if known is not None:
                words = (reading.addresses.get(index, ""), known.manufacturer, known.model)
                infos.append(((*own, *words, known.driver), 1))
                totals.append((own, known.memory * 1024))
        yield _INFO, infos
        yield _TOTAL, totals
        yield _FAILING, [(labels[card.index], int(bool(card.failing))) for card in reading.cards]
        working = [card for card in reading.cards if not card.failing]
        for field, family, factor in _VALUES:
            rows: list[tuple[Labels, float]] = []
            for card in working:
                if lacks(cards, card, field):
                    continue
                value = getattr(card, field)
                rows.append((labels[card.index], value * factor if factor >= 1 else value / 100))
            yield family, rows
        yield _ENERGY, find_details(reading, labels, "energy", 1000)
        for name, family in _ACTIVITY.items():
            yield family, find_details(reading, labels, name, _RATIO)
        yield from self._of_jobs(cards, labels)

    def _of_jobs(
        self, cards: CardsOnNode, labels: dict[int, tuple[str, str]]
    ) -> Iterator[FamilyRows]:
        pairs: list[tuple[Labels, float]] = []
        allocated: list[tuple[Labels, float]] = []
        used: list[tuple[Labels, float]] = []
        idle: list[tuple[Labels, float]] = []
        users = cards.used_by_job()
        for each in cards.allocations:
            own = (str(each.job),)
            pairs += [((*labels[card], *own), 1) for card in each.cards if card in labels]
            unused = idle_cards(each, users.get(each.job, {}), cards.reading)
            allocated.append((own, len(each.cards)))
            used.append((own, len(each.cards) - len(unused)))
            idle.append((own, len(unused)))
        yield _JOB, pairs
        yield _ALLOCATED, allocated
        yield _USED, used
        yield _IDLE, idle


def find_details(
    reading: GpuReading, labels: Mapping[int, Labels], name: str, divisor: float = 1
) -> list[tuple[Labels, float]]:
    """Return a detail of all labelled cards, without those of their links."""
    return [
        (labels[index], detail.value / divisor)
        for index, details in reading.details.items()
        if index in labels
        for detail in details
        if detail.name == name and not detail.part
    ]


def lacks(cards: CardsOnNode, card: SampleGpu, field: str) -> bool:
    """Return whether a card does not report a value. Its 0 then has no meaning."""
    index, reading = card.index, cards.reading
    if field == "ce_util":
        return index in reading.without_utilization
    if field == "memory":
        return index in reading.without_memory
    if field == "fan":  # a fan may stand still
        return all(detail.name != "fan" for detail in reading.details.get(index, ()))
    return index in reading.instances or not getattr(card, field)


_LABELS = (
    "gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "DCGM_FI_DRIVER_VERSION",
)  # fmt: skip
_KIB_OF_MIB = 1024
_WAYS = ("tx", "rx")
NVIDIA = "NVIDIA"
_MAJOR = "195:"
_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):(.+)", re.ASCII)


def _family(name: str, kind: Kind, text: str) -> Family:
    return Family(f"DCGM_FI_DEV_{name}", kind, text, _LABELS)


def _profile(name: str, text: str) -> Family:
    return Family(f"DCGM_FI_PROF_{name}", "gauge", text, (*_LABELS, "GPU_I_PROFILE", "GPU_I_ID"))


_STATES = (
    ("ce_clock", _family("SM_CLOCK", "gauge", "SM clock frequency (in MHz).")),
    ("memory_clock", _family("MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).")),
    ("temperature", _family("GPU_TEMP", "gauge", "GPU temperature (in C).")),
    ("power", _family("POWER_USAGE", "gauge", "Power draw (in W).")),
)
_UTILIZATION = _family("GPU_UTIL", "gauge", "GPU utilization (in %).")
_FRAMEBUFFER = _family("FB_USED", "gauge", "Framebuffer memory used (in MiB).")
_FREE = _family("FB_FREE", "gauge", "Framebuffer memory free (in MiB).")
_RESERVED = _family("FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB).")
_NVLINK = _family(
    "NVLINK_BANDWIDTH_TOTAL", "gauge", "NVLink traffic since the previous scrape (in MB/s)."
)
_DETAILS = {
    "energy": _family(
        "TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ)."
    ),
    "mem_temperature": _family("MEMORY_TEMP", "gauge", "Memory temperature (in C)."),
    "mem_utilization": _family("MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."),
    "encoder_utilization": _family("ENC_UTIL", "gauge", "Encoder utilization (in %)."),
    "decoder_utilization": _family("DEC_UTIL", "gauge", "Decoder utilization (in %)."),
    "pcie_replays": _family("PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries."),
    "xid": _family("XID_ERRORS", "gauge", "Value of the last XID error encountered."),
    "remapped_rows_corrected": _family(
        "CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors"
    ),
    "remapped_rows_uncorrected": _family(
        "UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors"
    ),
    "remapped_rows_failure": _family(
        "ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed"
    ),
    "vgpu_licensed": _family("VGPU_LICENSE_STATUS", "gauge", "vGPU License status"),
}


_RATIO = 100 * PER_PERCENT

_PROFILES = [
    (detail, divisor, _profile(name, text))
    for detail, divisor, name, text in (
        ("graphics_active", _RATIO, "GR_ENGINE_ACTIVE", "Share of time of a busy engine."),
        ("sm_active", _RATIO, "SM_ACTIVE", "Share of cycles with a warp on an SM."),
        ("sm_occupancy", _RATIO, "SM_OCCUPANCY", "Share of the warps that fit on an SM."),
        ("tensor_active", _RATIO, "PIPE_TENSOR_ACTIVE", "Share of cycles of the tensor pipes."),
        ("dram_active", _RATIO, "DRAM_ACTIVE", "Share of cycles of the memory's interface."),
        ("fp64_active", _RATIO, "PIPE_FP64_ACTIVE", "Share of cycles of the FP64 pipes."),
        ("fp32_active", _RATIO, "PIPE_FP32_ACTIVE", "Share of cycles of the FP32 pipes."),
        ("fp16_active", _RATIO, "PIPE_FP16_ACTIVE", "Share of cycles of the FP16 pipes."),
        ("gpm_pcie_tx", 1, "PCIE_TX_BYTES", "Bytes per second sent over PCIe."),
        ("gpm_pcie_rx", 1, "PCIE_RX_BYTES", "Bytes per second received over PCIe."),
        ("gpm_nvlink_tx", 1, "NVLINK_TX_BYTES", "Bytes per second sent over NVLink."),
        ("gpm_nvlink_rx", 1, "NVLINK_RX_BYTES", "Bytes per second received over NVLink."),
    )
]
"""DCGM reads these fields through NVML's GPM on Hopper and later, and divides percent by 100."""
_PROFILE = re.compile(r"MIG (\S+)$", re.ASCII)


class DcgmCollector(Collector):
    """NVIDIA cards; of their MIG instances only the activity."""

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._links = NvlinkRates()

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the cards through NVML. Raise NotHereError without an NVIDIA card."""
        cards = self.sources.cards.get(node)
        labels = _label_cards(cards, node.hostname)
        if not labels:
            raise NotHereError("no NVIDIA card")
        reading = cards.reading
        states = [card for card in reading.cards if card.index in labels and not card.failing]
        for field, family in _STATES:
            yield (
                family,
                [
                    (labels[card.index], getattr(card, field))
                    for card in states
                    if not lacks(cards, card, field)
                ],
            )
        yield (
            _UTILIZATION,
            [
                (labels[card.index], card.ce_util)
                for card in states
                if card.index not in reading.without_utilization
            ],
        )
        used: list[tuple[Labels, float]] = []
        free: list[tuple[Labels, float]] = []
        reserved = dict(find_details(reading, labels, "mem_reserved"))
        sizes = reading.sum_memory({each.index: each.memory for each in reading.cards})
        totals = reading.sum_memory({n: each.memory for n, each in cards.descriptions.items()})
        for card in states:
            if card.index not in reading.without_memory:
                own, size = labels[card.index], sizes[card.index]
                rest = totals[card.index] - size - int(reserved.get(own, 0))
                used.append((own, size // _KIB_OF_MIB))
                free.append((own, max(0, rest) // _KIB_OF_MIB))
        yield _FREE, free
        yield _FRAMEBUFFER, used
        yield _RESERVED, [(own, size // _KIB_OF_MIB) for own, size in reserved.items()]
        yield _NVLINK, self._links.read(reading, labels)
        for name, family in _DETAILS.items():
            yield family, find_details(reading, labels, name)
        parts = _label_instances(cards, labels)
        for name, divisor, family in _PROFILES:
            yield family, find_details(reading, parts, name, divisor)


class NvlinkRates:
    """Rates of all links of a card in MB of 1000 KiB per second, as DCGM computes them."""

    def __init__(self) -> None:
        self._reading: GpuReading | None = None
        self._moment = 0.0
        self._totals: dict[Labels, float] = {}
        self._rates: list[tuple[Labels, float]] = []

    def read(self, reading: GpuReading, labels: Mapping[int, Labels]) -> list[tuple[Labels, float]]:
        """Return the rates since the previous reading; none at the first one, or after a reset."""
        if reading is self._reading:
            return self._rates
        now = time.monotonic()
        sent, received = (dict(find_details(reading, labels, f"nvlink_{way}")) for way in _WAYS)
        totals = {own: sent[own] + received[own] for own in sent.keys() & received.keys()}
        seconds = max(now - self._moment, 1e-3)
        self._rates = [
            (own, (total - self._totals[own]) // (1000 * seconds))
            for own, total in sorted(totals.items())
            if total >= self._totals.get(own, math.inf)
        ]
        self._reading, self._moment, self._totals = reading, now, totals
        return self._rates


def _label_instances(cards: CardsOnNode, labels: Mapping[int, Labels]) -> dict[int, Labels]:
    """Return labels with profile and id: both empty for a card, those of its card for an instance.

    An instance has the labels of its card, as in dcgm-exporter.
    """
    found: dict[int, Labels] = {index: (*own, "", "") for index, own in labels.items()}
    reading = cards.reading
    of_cards = {reading.addresses.get(index, ""): own for index, own in labels.items()}
    for index in reading.instances & cards.descriptions.keys():
        profile = _PROFILE.search(cards.descriptions[index].model)
        own = of_cards.get(reading.addresses.get(index, ""))
        for detail in reading.details.get(index, ()):
            if detail.name == GPU_INSTANCE and own is not None:
                found[index] = (*own, "" if profile is None else profile[1], f"{detail.value}")
    return found


def find_minors(reading: GpuReading) -> dict[int, str]:
    """Return the minor device numbers of NVIDIA cards by card index."""
    return {
        index: device.removeprefix(_MAJOR)
        for device, index in reading.devices.items()
        if device.startswith(_MAJOR)
    }


def _label_cards(cards: CardsOnNode, hostname: str) -> dict[int, Labels]:
    """Return the labels of the NVIDIA cards by card index."""
    reading = cards.reading
    minors = find_minors(reading)
    found: dict[int, Labels] = {}
    for card in reading.cards:
        index = card.index
        known = cards.descriptions.get(index)
        if known is None or known.manufacturer != NVIDIA or index in reading.instances:
            continue
        address = format_address(reading.addresses.get(index, ""))
        device = f"nvidia{minors.get(index, index)}"
        found[index] = (str(index), card.uuid, address, device, known.model, hostname, known.driver)
    return found


def format_address(address: str) -> str:
    """Return a PCI address as NVML writes it: a domain of eight digits, in upper case."""
    found = _ADDRESS.fullmatch(address)
    return address if found is None else f"{int(found[1], 16):08X}:{found[2].upper()}"


_EVERY = 15.0
_FILE = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})?", re.ASCII)
_MODE = 0o644


class GpuJobFiles:
    """The files of a directory, kept equal to the allocations. Only changed files are written."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._written: dict[str, bytes] | None = None

    def write(self, cards: CardsOnNode) -> None:
        """Write the files of allocated cards and remove those of free cards. Log failures."""
        jobs: dict[str, list[int]] = {}
        for each in cards.allocations:
            for card in each.cards:
                jobs.setdefault(str(card), []).append(each.job)
        wanted = {
            name: "".join(f"{job}\n" for job in sorted(each)).encode()
            for name, each in jobs.items()
        }
        if wanted == self._written:
            return
        try:
            for name, content in wanted.items():
                if self._written is None or self._written.get(name) != content:
                    replace_file(os.path.join(self._directory, name), content, _MODE)
            self._remove_others(set(wanted))
        except (OSError, NotPermittedError) as error:
            self._written = None
            logger.warning("exporter: gpu-job-directory: %s", error)
            return
        self._written = wanted

    def _remove_others(self, wanted: set[str]) -> None:
        """Remove the files of free cards: dcgm-exporter reads all files."""
        directory = open_directory(self._directory)
        try:
            # A descriptor opened with O_PATH can't be listed itself.
            for name in os.listdir(f"/proc/self/fd/{directory}"):
                if _FILE.fullmatch(name) and name not in wanted:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)


def keep_gpu_jobs(
    directory: str, node: Node, sources: NodeSources, closing: threading.Event
) -> None:
    """Update the files in a thread, independent of scrapes, until `closing` is set."""
    files = GpuJobFiles(directory)

    def keep() -> None:
        while True:
            try:
                files.write(sources.cards.get(node))
            except NotHereError:
                pass  # no card, no files
            except CcagentError as error:
                logger.warning("exporter: gpu-job-directory: %s", error)
            except Exception:  # noqa: BLE001 - the next turn may work
                logger.exception("exporter: gpu-job-directory: unforeseen error")
            if closing.wait(_EVERY):
                return

    try:
        threading.Thread(target=keep, name="exporter-gpu-jobs", daemon=True).start()
    except RuntimeError as error:
        logger.error("exporter: gpu-job-directory: no thread: %s", error)
