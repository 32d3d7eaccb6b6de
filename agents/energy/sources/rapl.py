"""RAPL through perf if permitted, else through powercap."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.energy.sources.base import EnergySource, Kept
from ccagent.agents.energy.sources.perf import PerfEnergySource
from ccagent.agents.energy.sources.powercap import PowercapSource
from ccagent.errors import CcagentError, NotHereError, NotPermittedError
from ccagent.machine.procfs.cpuinfo import parse_cpuinfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.energy.domains import EnergyDomain, MeasuredEnergy
    from ccagent.agents.energy.settings import RaplWay
    from ccagent.machine.checks import Check
    from ccagent.machine.node import Node

_WITH_MODEL = frozenset({"AuthenticAMD", "HygonGenuine"})


class RaplSource(EnergySource):
    """Reads RAPL through perf or powercap. way: `auto`, or the only way to try."""

    name: ClassVar[str] = "rapl"

    def __init__(self, way: RaplWay, perf: PerfEnergySource | None = None) -> None:
        super().__init__()
        self._way = way
        self._perf = perf or PerfEnergySource()
        self._powercap = PowercapSource()
        self._is_model: bool | None = None

    def checks(self, node: Node) -> Iterator[Check]:
        """Yield the checks of both ways."""
        if self._way in {"auto", "powercap"}:
            yield from self._powercap.checks(node)
        if self._way in {"auto", "perf"}:
            yield from self._perf.checks(node)

    def read(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        """Read the counters of perf, else of powercap. Raise CcagentError if both fail."""
        found = self._read_way(node)
        if self._is_model is None:
            self._is_model = has_power_model(node)
        if not self._is_model:
            return found
        return {domain: each._replace(is_estimate=True) for domain, each in found.items()}

    def _read_way(self, node: Node) -> dict[EnergyDomain, MeasuredEnergy]:
        self.errors = []
        refused: CcagentError | None = None
        if self._way in {"auto", "perf"}:
            try:
                found = self._perf.read(node)
            except CcagentError as error:
                if self._way == "perf":
                    raise
                refused = error
            else:
                self.errors = self._perf.errors
                if found or self._way == "perf":
                    self._powercap = PowercapSource()  # its counters are not polled any more
                    self.poll_interval = 0.0
                    return found
        try:
            found = self._powercap.read(node)
        except NotHereError as error:
            if refused is not None and not isinstance(refused, NotHereError):
                raise refused from error
            raise
        except NotPermittedError as error:
            if refused is None or isinstance(refused, NotHereError):
                raise
            raise NotPermittedError(f"{error}; or {refused}") from error
        self.errors = [*self.errors, *self._powercap.errors]
        self.poll_interval = self._powercap.poll_interval
        return found

    def poll(self, node: Node) -> None:
        """Read the counters of powercap to detect wraps."""
        self._powercap.poll(node)

    def keep(self) -> Kept:
        """Return the last readings of powercap. Counters of perf end with the process."""
        return self._powercap.keep() if self.poll_interval else {}

    def restore(self, kept: Kept) -> None:
        """Continue after the readings of an earlier process."""
        self._powercap.restore(kept)

    def close(self) -> None:
        """Close the counters of perf."""
        self._perf.close()


def has_power_model(node: Node) -> bool:
    """Return whether the processor computes its energy by a model (AMD)."""
    try:
        blocks = parse_cpuinfo(node.read("proc/cpuinfo"))
    except CcagentError:
        return False
    return any(block.get("vendor_id") in _WITH_MODEL for block in blocks[:1])
