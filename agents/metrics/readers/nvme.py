"""Reader of health of NVMe drives: wear, errors, temperatures, lifetime counters.

Source: include/uapi/linux/nvme_ioctl.h of Linux; NVM Express Base Specification, Get Log Page,
figure "SMART / Health Information Log Page".
"""

from __future__ import annotations

import re
import struct
from array import array
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

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

_COUNTERS_END = 192
_SENSORS = struct.Struct("<8H")
_SENSORS_AT = 200
_ZERO_CELSIUS = 273
_HOTTEST = 1000


class SmartField(NamedTuple):
    """A number of the log, little-endian. factor: its unit in that of the metric."""

    first: int
    size: int
    description: str
    unit: str = ""
    factor: int = 1
    aggregation: Literal["sum", "mean", "max"] = "sum"

    @property
    def source(self) -> str:
        """Return the bytes of the number, and its factor."""
        where = f"bytes {self.first}-{self.first + self.size - 1}"
        if self.size == 1:
            where = f"byte {self.first}"
        return where if self.factor == 1 else f"{where} * {self.factor}"


_FIELDS = {
    "nvme_critical_warning": SmartField(
        0, 1,
        "critical warnings as bits: 1 spare, 2 temperature, 4 reliability, 8 read-only, 16 backup",
        aggregation="max",
    ),
    "nvme_temp": SmartField(1, 2, "temperature", "degC", aggregation="max"),
    "nvme_spare": SmartField(3, 1, "spare capacity left", "%", aggregation="mean"),
    "nvme_spare_threshold": SmartField(
        4, 1, "spare capacity below which the drive warns", "%", aggregation="mean"
    ),
    "nvme_percentage_used": SmartField(
        5, 1, "used part of the endurance, up to 255", "%", aggregation="max"
    ),
    "nvme_bytes_read": SmartField(32, 16, "total bytes read", "B", 512_000),
    "nvme_bytes_written": SmartField(48, 16, "total bytes written", "B", 512_000),
    "nvme_host_reads": SmartField(64, 16, "total read commands"),
    "nvme_host_writes": SmartField(80, 16, "total write commands"),
    "nvme_busy_time": SmartField(96, 16, "total time busy with commands", "s", 60),
    "nvme_power_cycles": SmartField(112, 16, "total power cycles"),
    "nvme_power_on_time": SmartField(128, 16, "total power-on time", "s", 3600, "max"),
    "nvme_unsafe_shutdowns": SmartField(144, 16, "total unsafe shutdowns"),
    "nvme_media_errors": SmartField(160, 16, "total unrecovered data integrity errors"),
    "nvme_error_log_entries": SmartField(176, 16, "total entries of the error log"),
    "nvme_warning_temp_time": SmartField(
        192, 4, "total time above the warning temperature", "s", 60
    ),
    "nvme_critical_temp_time": SmartField(
        196, 4, "total time above the critical temperature", "s", 60
    ),
}  # fmt: skip
"""By metric; counters are over the life of the drive."""


class SmartLog(NamedTuple):
    """Health of a drive. values: by metric. sensors: degrees Celsius by number from 1."""

    values: dict[str, int]
    sensors: dict[int, int]


def parse_smart_log(content: bytes) -> SmartLog:
    """Parse the 512 bytes of the log. Raise UnparsableError if they are invalid.

    The temperature is omitted if the drive has no sensor.
    """
    if len(content) != LOG_SIZE:
        raise UnparsableError(f"SMART log of {len(content)} bytes, not {LOG_SIZE}")
    # Drives without a log return all bits 0 or all bits 1.
    if not any(content) or not any(byte ^ 0xFF for byte in content[:_COUNTERS_END]):
        raise UnparsableError("SMART log without content")
    values = {
        metric: field.factor
        * int.from_bytes(content[field.first : field.first + field.size], "little")
        for metric, field in _FIELDS.items()
    }
    spare, threshold = values["nvme_spare"], values["nvme_spare_threshold"]
    if spare > 100 or threshold > 100:
        raise UnparsableError(f"SMART log with a spare of {spare} %, threshold {threshold} %")
    degrees = _celsius(values["nvme_temp"])
    if degrees is None:
        del values["nvme_temp"]
    else:
        values["nvme_temp"] = degrees
    sensors = {
        number: degrees
        for number, each in enumerate(_SENSORS.unpack_from(content, _SENSORS_AT), 1)
        if (degrees := _celsius(each)) is not None
    }
    return SmartLog(values, sensors)


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


def _metric(description: str, field: SmartField) -> Metric:
    return Metric(
        unit=field.unit,
        type="node",
        description=description,
        source=f"SMART log (02h) of /dev/nvmeN, {field.source}",
        aggregation=field.aggregation,
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
            name: _metric(f"{field.description}, by drive (stype disk)", field)
            for name, field in _FIELDS.items()
        },
        "nvme_temp_sensor": _metric(
            "temperature, by sensor of a drive (stype sensor)",
            SmartField(_SENSORS_AT, _SENSORS.size, "", "degC", aggregation="max"),
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
            and node.read_text(f"{_CONTROLLERS}/{name}/transport") not in _FABRICS
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
    for metric, value in log.values.items():
        yield Gauge(metric, value, scope)
    for number, degrees in log.sensors.items():
        scope = Scope(stype="sensor", stype_id=f"{controller}/{number}")
        yield Gauge("nvme_temp_sensor", degrees, scope)
