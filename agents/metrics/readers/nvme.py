"""Reader of health of NVMe drives: wear, errors, temperatures, lifetime counters."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.metrics.pipeline.repeated_call import PATIENCE, RepeatedCall
from ccagent.agents.metrics.readers.base import Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.agents.metrics.readers.nvme_ioctl import read_smart_log
from ccagent.agents.metrics.readers.nvme_smart import SmartLog, parse_smart_log
from ccagent.config.duration import Duration
from ccagent.errors import CcagentError, NotHereError, NotPermittedError, UnparsableError
from ccagent.machine.parsed import read_lack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccagent.machine.node import Node

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
        self.errors = []
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
        try:
            names = node.list(_CONTROLLERS)
        except NotHereError:
            return []
        except CcagentError as error:
            self.errors.append(str(error))
            return []
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
