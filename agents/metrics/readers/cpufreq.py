"""Reader of frequencies of hwthreads, from the kernel's scaling driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ccagent.agents.metrics.readers.base import Gauge, Metric, Reader, ReaderSettings, Scope
from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.cpulist import parse_cpu_list

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.machine.node import Node

_CPUS = "sys/devices/system/cpu"
_HIGHEST = 100_000_000
"""Upper limit in kHz, above any real frequency."""


def parse_frequency(content: bytes) -> int:
    """Parse scaling_cur_freq in kHz. Return Hz. Raise UnparsableError.

    A driver without a known frequency writes 0 or `<unknown>`: both are unparsable.
    Source: scaling_cur_freq in Documentation/admin-guide/pm/cpufreq.rst of Linux.
    """
    text = content.strip()
    if not text.isdigit() or len(text) > 10 or not 0 < int(text) <= _HIGHEST:
        raise UnparsableError(f"not a frequency: {content[:80]!r}")
    return int(text) * 1000


class CpufreqReader(Reader[ReaderSettings]):
    """Frequencies of online hwthreads; read only if wanted.

    Some kernels wait 10 ms for each idle hwthread. Set `every` to read less often.
    """

    name = "cpufreq"
    metrics: ClassVar[dict[str, Metric]] = {
        "cpufreq": Metric(
            unit="Hz",
            type="hwthread",
            description="frequency last seen or requested by the kernel; `clock` is measured",
            source="/sys/devices/system/cpu/cpuN/cpufreq/scaling_cur_freq",
            aggregation="mean",
            is_default=False,
        )
    }

    def read(self, node: Node) -> Iterable[Gauge]:
        """Read each scaling_cur_freq. Raise NotHereError if no hwthread has one.

        Only the first unreadable file is reported in `errors`.
        """
        self.errors = []
        if self.wanted is not None and self.wanted.isdisjoint(self.metrics):
            return []
        found: list[Gauge] = []
        errors: list[str] = []
        for number in read_parsed(node, f"{_CPUS}/online", parse_cpu_list):
            path = f"{_CPUS}/cpu{number}/cpufreq/scaling_cur_freq"
            try:
                frequency = read_parsed(node, path, parse_frequency)
            except NotHereError:
                continue
            except CcagentError as error:
                errors.append(str(error))
                continue
            found.append(Gauge("cpufreq", frequency, Scope("hwthread", str(number))))
        self.errors = errors[:1]
        if not found and not errors:
            raise NotHereError(f"/{_CPUS}: no hwthread with cpufreq/scaling_cur_freq")
        return found
