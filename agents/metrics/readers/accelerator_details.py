"""On-demand values of accelerators, from the details of the vendor libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.agents.metrics.readers.accelerator_tables import DETAILS
from ccagent.agents.metrics.readers.base import Count, Gauge, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccagent.machine.gpu.vendor import Detail

_COUNTED = frozenset({
    "acc_power_average", "acc_nvlink_tx", "acc_nvlink_rx", "acc_nvlink_link_tx",
    "acc_nvlink_link_rx", "acc_xgmi_tx", "acc_xgmi_rx",
})  # fmt: skip
"""Details that are counters, sent as rates. All other details are gauges."""


def select_details(wanted: frozenset[str] | None) -> frozenset[str]:
    """Return the details for these metrics; None means all."""
    metrics = [name for name in DETAILS if wanted is None or name in wanted]
    return frozenset(
        "energy" if name == "acc_power_average" else name.removeprefix("acc_") for name in metrics
    )


def detail_values(details: Iterable[Detail], scope: Scope) -> Iterator[Gauge | Count]:
    """Return the values of a card and of its links."""
    for detail in details:
        names = [f"acc_{detail.name}"]
        if detail.name == "energy":
            names.append("acc_power_average")
        where = scope._replace(stype="nvlink", stype_id=detail.part) if detail.part else scope
        for name in names:
            metric = DETAILS.get(name)
            if metric is None:
                continue
            if name in _COUNTED:
                yield Count(name, detail.value, where)
            else:
                yield Gauge(name, detail.value * metric.scale, where)
