"""Units and thresholds of metrics in ClusterCockpit's JSON schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ccagent.agents.metrics.pipeline.outputs import Output
    from ccagent.agents.metrics.readers.base import Metric

_BASES = {"B": "B", "B/s": "B/s", "Byte/s": "B/s", "Flops/s": "F/s", "Hz": "Hz", "W": "W",
          "J": "J", "degC": "°C"}  # fmt: skip
_PREFIXES = {"": "", "K": "K", "k": "K", "M": "M", "G": "G", "T": "T"}
_UTILISED = ("cpu_user", "acc_utilization")


class NodeSize(NamedTuple):
    """Size of a node: number of hwthreads, and bytes of memory."""

    hwthreads: int
    memory: int


def schema_unit(unit: str) -> dict[str, str]:
    """Return base and prefix of a unit. A unit unknown to the schema has an empty base."""
    for name, base in _BASES.items():
        if unit.endswith(name) and unit.removesuffix(name) in _PREFIXES:
            prefix = _PREFIXES[unit.removesuffix(name)]
            return {"base": base, "prefix": prefix} if prefix else {"base": base}
    return {"base": ""}


def thresholds(
    name: str, metric: Metric, output: Output, size: NodeSize
) -> dict[str, float | bool]:
    """Return peak, normal, caution and alert, in the unit of the output.

    Low utilisation, high memory use and high load are bad. 0 is an unknown limit.
    """
    peak, normal, caution, alert, is_low_better = 0.0, 0.0, 0.0, 0.0, False
    if name in _UTILISED:
        peak, normal, caution, alert = 100, 50, 20, 10
    elif metric.unit == "%" and metric.aggregation == "mean":
        peak, normal, caution, alert, is_low_better = 100, 10, 50, 90, True
    elif name == "cpu_load":
        peak, normal, caution, alert = (size.hwthreads * each for each in (1, 1, 0.5, 0.1))
    elif name == "mem_used":
        peak, normal, caution, alert = (size.memory * each for each in (1, 0.5, 0.9, 0.95))
        is_low_better = True
    found: dict[str, float | bool] = {
        key: round(value * output.factor, 3)
        for key, value in zip(
            ("peak", "normal", "caution", "alert"), (peak, normal, caution, alert), strict=True
        )
    }
    return found | ({"lowerIsBetter": True} if is_low_better else {})
