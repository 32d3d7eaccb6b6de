"""Reader of health of NVMe drives: wear, errors, temperatures, lifetime counters.

Source: include/uapi/linux/nvme_ioctl.h of Linux; NVM Express Base Specification, Get Log Page,
figure "SMART / Health Information Log Page".
"""

from __future__ import annotations

import re
import struct
from array import array
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from msgspec import Meta

from ccagent.agents.metrics.readers.base import Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.config.duration import Duration
from ccagent.errors import (
    CcagentError,
    NotHereError,
    NotPermittedError,
    ProgramError,
    UnparsableError,
)
from ccagent.machine.background import PATIENCE, RepeatedCall
from ccagent.machine.parsed import read_lack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccagent.machine.node import Node


LOG_SIZE = 512

# From byte 0: warning, temperature, spare, spare threshold, percentage used. From byte 32: ten
# counters of 16 bytes. From byte 192: two times. From byte 200: eight sensors.
_HEAD = struct.Struct("<BHBBB")
_COUNTERS_AT, _COUNTER_SIZE = 32, 16
_COUNTERS = 10
_TIMES = struct.Struct("<II")
_TIMES_AT = 192
_SENSORS = struct.Struct("<8H")
_SENSORS_AT = 200
_DATA_UNIT = 512_000
_ZERO_CELSIUS = 273
_HOTTEST = 1000


class SmartLog(NamedTuple):
    """Health of a drive.

    critical_warning: bits, 0 without a warning. temperature: degrees Celsius of the whole drive,
    None without a sensor. sensors: degrees Celsius by number from 1. spare, spare_threshold,
    percentage_used: percent; percentage_used is at most 255. Counters cover the drive's life:
    bytes, commands, seconds.
    """

    critical_warning: int
    temperature: int | None
    spare: int
    spare_threshold: int
    percentage_used: int
    bytes_read: int
    bytes_written: int
    host_reads: int
    host_writes: int
    busy_time: int
    power_cycles: int
    power_on_time: int
    unsafe_shutdowns: int
    media_errors: int
    error_log_entries: int
    warning_temperature_time: int
    critical_temperature_time: int
    sensors: dict[int, int]


def parse_smart_log(content: bytes) -> SmartLog:
    """Parse the 512 bytes of the log. Raise UnparsableError if they are invalid."""
    if len(content) != LOG_SIZE:
        raise UnparsableError(f"SMART log of {len(content)} bytes, not {LOG_SIZE}")
    warning, kelvin, spare, threshold, used = _HEAD.unpack_from(content)
    # Drives without a log return all bits 0 or all bits 1.
    if not any(content) or not any(byte ^ 0xFF for byte in content[:_TIMES_AT]):
        raise UnparsableError("SMART log without content")
    if spare > 100 or threshold > 100:
        raise UnparsableError(f"SMART log with a spare of {spare} %, threshold {threshold} %")
    counters = [
        int.from_bytes(content[start : start + _COUNTER_SIZE], "little")
        for start in range(_COUNTERS_AT, _COUNTERS_AT + _COUNTERS * _COUNTER_SIZE, _COUNTER_SIZE)
    ]
    read, written, reads, writes, busy, cycles, hours, shutdowns, errors, entries = counters
    warning_minutes, critical_minutes = _TIMES.unpack_from(content, _TIMES_AT)
    sensors = {
        number: degrees
        for number, each in enumerate(_SENSORS.unpack_from(content, _SENSORS_AT), 1)
        if (degrees := _celsius(each)) is not None
    }
    return SmartLog(
        critical_warning=warning,
        temperature=_celsius(kelvin),
        spare=spare,
        spare_threshold=threshold,
        percentage_used=used,
        bytes_read=read * _DATA_UNIT,
        bytes_written=written * _DATA_UNIT,
        host_reads=reads,
        host_writes=writes,
        busy_time=busy * 60,
        power_cycles=cycles,
        power_on_time=hours * 3600,
        unsafe_shutdowns=shutdowns,
        media_errors=errors,
        error_log_entries=entries,
        warning_temperature_time=warning_minutes * 60,
        critical_temperature_time=critical_minutes * 60,
        sensors=sensors,
    )


def _celsius(kelvin: int) -> int | None:
    """Return degrees Celsius; None for a missing sensor (0) or an implausible value."""
    return kelvin - _ZERO_CELSIUS if 0 < kelvin <= _HOTTEST else None


# struct nvme_admin_cmd: opcode, flags, reserved, nsid, cdw2, cdw3, metadata, addr, metadata_len,
# data_len, cdw10 to cdw15, timeout_ms, result.
_COMMAND = struct.Struct("=BBHIIIQQIIIIIIIIII")
_ADMIN_COMMAND = 0xC000_0000 | _COMMAND.size << 16 | ord("N") << 8 | 0x41
_GET_LOG_PAGE = 0x02
_SMART_LOG = 0x02
_ALL_NAMESPACES = 0xFFFF_FFFF


def smart_command(address: int, milliseconds: int) -> bytes:
    """Return the admin command that writes the SMART log of a controller to `address`."""
    words = LOG_SIZE // 4 - 1
    return _COMMAND.pack(
        _GET_LOG_PAGE, 0, 0, _ALL_NAMESPACES, 0, 0, 0, address, 0, LOG_SIZE,
        words << 16 | _SMART_LOG, 0, 0, 0, 0, 0, milliseconds, 0,
    )  # fmt: skip


def read_smart_log(node: Node, controller: str, seconds: float) -> bytes:
    """Return the log of a controller such as `nvme0`.

    Needs root, or CAP_SYS_ADMIN and read permission of /dev/nvmeN. Raise CcagentError.
    """
    import fcntl
    import os

    from ccagent.errors import raise_for

    path = f"dev/{controller}"
    descriptor = node.open(path)
    try:
        log = array("B", bytes(LOG_SIZE))
        command = bytearray(smart_command(log.buffer_info()[0], int(seconds * 1000)))
        try:
            status = fcntl.ioctl(descriptor, _ADMIN_COMMAND, command)
        except OSError as error:
            raise_for(path, error)
        if status:
            raise ProgramError(f"/{path}: Get Log Page failed with NVMe status {status:#x}")
        return log.tobytes()
    finally:
        os.close(descriptor)


_CONTROLLERS = "sys/class/nvme"
_NAME = re.compile(r"nvme([0-9]{1,4})", re.ASCII)
_FABRICS = frozenset({"tcp", "rdma", "fc", "loop"})
"""Transports to remote drives."""
_MOST = 64

_FIELDS = {
    "nvme_critical_warning": (
        "", "max", "critical_warning",
        "critical warnings as bits: 1 spare, 2 temperature, 4 reliability, 8 read-only, 16 backup",
        "byte 0",
    ),
    "nvme_temp": ("degC", "max", "temperature", "temperature", "bytes 1-2"),
    "nvme_spare": ("%", "mean", "spare", "spare capacity left", "byte 3"),
    "nvme_spare_threshold": (
        "%", "mean", "spare_threshold", "spare capacity below which the drive warns", "byte 4"
    ),
    "nvme_percentage_used": (
        "%", "max", "percentage_used", "used part of the endurance, up to 255", "byte 5"
    ),
    "nvme_bytes_read": ("B", "sum", "bytes_read", "total bytes read", "bytes 32-47 * 512000"),
    "nvme_bytes_written": (
        "B", "sum", "bytes_written", "total bytes written", "bytes 48-63 * 512000"
    ),
    "nvme_host_reads": ("", "sum", "host_reads", "total read commands", "bytes 64-79"),
    "nvme_host_writes": ("", "sum", "host_writes", "total write commands", "bytes 80-95"),
    "nvme_busy_time": (
        "s", "sum", "busy_time", "total time busy with commands", "bytes 96-111 * 60"
    ),
    "nvme_power_cycles": ("", "sum", "power_cycles", "total power cycles", "bytes 112-127"),
    "nvme_power_on_time": (
        "s", "max", "power_on_time", "total power-on time", "bytes 128-143 * 3600"
    ),
    "nvme_unsafe_shutdowns": (
        "", "sum", "unsafe_shutdowns", "total unsafe shutdowns", "bytes 144-159"
    ),
    "nvme_media_errors": (
        "", "sum", "media_errors", "total unrecovered data integrity errors", "bytes 160-175"
    ),
    "nvme_error_log_entries": (
        "", "sum", "error_log_entries", "total entries of the error log", "bytes 176-191"
    ),
    "nvme_warning_temp_time": (
        "s", "sum", "warning_temperature_time",
        "total time above the warning temperature", "bytes 192-195 * 60",
    ),
    "nvme_critical_temp_time": (
        "s", "sum", "critical_temperature_time",
        "total time above the critical temperature", "bytes 196-199 * 60",
    ),
}  # fmt: skip
"""By metric: unit, aggregation, field of SmartLog, description, bytes of the log."""


class NvmeSettings(ReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.nvme]."""

    every: Annotated[Duration, Meta(description="interval of this reader; 0s: every sample")] = (
        Duration("1m")
    )
    exclude: Annotated[
        tuple[str, ...], Meta(description="patterns of controllers to skip, such as nvme0")
    ] = ()
    time_limit: Annotated[
        Duration, Meta(description="time after which the kernel aborts the query of a drive")
    ] = Duration("5s")


def _metric(unit: str, aggregation: str, description: str, source: str) -> Metric:
    return Metric(
        unit=unit,
        type="node",
        description=description,
        source=f"SMART log (02h) of /dev/nvmeN, {source}",
        aggregation="max" if aggregation == "max" else "mean" if aggregation == "mean" else "sum",
        is_default=False,
    )


class NvmeReader(Reader[NvmeSettings]):
    """SMART log of each local NVMe controller; queried only if a metric is wanted."""

    name = "nvme"
    is_exposed = False
    Settings = NvmeSettings
    has_own_pace = True
    metrics: ClassVar[dict[str, Metric]] = {
        **{
            name: _metric(unit, aggregation, f"{description}, by drive (stype disk)", source)
            for name, (unit, aggregation, _, description, source) in _FIELDS.items()
        },
        "nvme_temp_sensor": _metric(
            "degC", "max", "temperature, by sensor of a drive (stype sensor)", "bytes 200-215"
        ),
    }

    def __init__(
        self,
        settings: NvmeSettings | None = None,
        read_log: Callable[[Node, str, float], bytes] = read_smart_log,
    ) -> None:
        super().__init__(settings)
        self._read_log = read_log
        self._call: RepeatedCall[tuple[dict[str, SmartLog], list[str]]] = RepeatedCall(
            "", self.settings.every.seconds
        )
        self._controllers: list[str] = []
        self._is_begun = False

    def begin(self, node: Node) -> None:
        """Start reading the logs in the background if they are due."""
        self.forget_errors()
        self._is_begun = True
        if not self.is_wanted:
            return
        self._controllers = controllers = self._find(node)
        if controllers:
            self._call.begin(
                node.clock.time(),
                lambda: self._read_all(node, controllers),
                self.errors,
                is_due=self.is_patient,
            )

    def read(self, node: Node) -> Iterable[Gauge]:
        """Return the values of the logs. Raise NotHereError without an NVMe drive."""
        if not self._is_begun:
            self.begin(node)
        self._is_begun = False
        if not self.is_wanted:
            return []
        if not self._controllers:
            raise NotHereError(f"/{_CONTROLLERS}: no local NVMe controller")
        limit = (self.settings.time_limit.seconds + 1) * len(self._controllers)
        result = self._call.result(limit if self.is_patient else PATIENCE, self.errors)
        if result is None:
            return []
        logs, problems = result
        self.errors += problems
        return [gauge for name, log in logs.items() for gauge in gauges(name, log)]

    def _find(self, node: Node) -> list[str]:
        names = self.try_list(node, _CONTROLLERS)
        numbers = sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)
        return [
            name
            for name in (f"nvme{number}" for number in numbers)
            if not any(fnmatchcase(name, each) for each in self.settings.exclude)
            and _transport(node, name) not in _FABRICS
        ][:_MOST]

    def _read_all(
        self, node: Node, controllers: list[str]
    ) -> tuple[dict[str, SmartLog], list[str]]:
        """Return the logs by controller, and a message for each failure."""
        logs: dict[str, SmartLog] = {}
        problems: list[str] = []
        for name in controllers:
            try:
                content = self._read_log(node, name, self.settings.time_limit.seconds)
                logs[name] = parse_smart_log(content)
            except NotPermittedError as error:
                lack = read_lack(node, "CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH")
                problems.append(f"{error}: reading SMART logs: {lack}")
            except NotHereError as error:
                problems.append(f"{error}: a service with PrivateDevices=yes does not see it")
            except UnparsableError as error:
                problems.append(f"/dev/{name}: {error}")
            except CcagentError as error:
                problems.append(str(error))
        return logs, problems


def gauges(controller: str, log: SmartLog) -> Iterator[Gauge]:
    """Yield the values of a drive."""
    scope = Scope(stype="disk", stype_id=controller)
    for metric, (_, _, field, _, _) in _FIELDS.items():
        value: int | None = getattr(log, field)
        if value is not None:
            yield Gauge(metric, value, scope)
    for number, degrees in log.sensors.items():
        scope = Scope(stype="sensor", stype_id=f"{controller}/{number}")
        yield Gauge("nvme_temp_sensor", degrees, scope)


def _transport(node: Node, controller: str) -> str:
    """Return the transport of a controller; empty before Linux 4.10."""
    try:
        path = f"{_CONTROLLERS}/{controller}/transport"
        return node.read_single(path).decode("ascii", "replace").strip()
    except CcagentError:
        return ""
