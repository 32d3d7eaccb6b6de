"""A table of a node's description."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.views.table.layout import TableColumn, format_rows
from ccagent.views.terminal import clean, cut
from ccagent.views.units import short_size

if TYPE_CHECKING:
    from ccagent.records.envelopes import SysinfoAttributes
    from ccagent.views.terminal import Style

_CARDS = (
    TableColumn("GPU", True), TableColumn("MODEL"), TableColumn("MEM", True),
    TableColumn("LIMIT", True, 2), TableColumn("DRIVER", rank=1), TableColumn("ADDRESS"),
)  # fmt: skip
_SOFTWARE = (TableColumn("SOFTWARE"), TableColumn("VERSION"))


def format_sysinfo(info: SysinfoAttributes, width: int, style: Style) -> list[str]:
    """Return one line per part of the node."""
    cores = info.sockets * info.cores_per_socket
    threads = cores * info.threads_per_core
    facts = {
        "node": f"{info.node} of {info.cluster}",
        "system": f"{info.os_name} {info.os_release} {info.architecture}",
        "CPU": info.cpu_model or "unknown",
        "cores": f"{cores} in {info.sockets} sockets, {threads} threads",
        "memory": f"{short_size(1024.0 * info.memory)}, {info.numa_nodes} NUMA nodes",
        "GPUs": str(len(info.cards)),
    }
    lines = [cut(f"{name:8} {clean(text)}", width) for name, text in facts.items()]
    if info.cards:
        rows = [
            [
                str(card.index), f"{card.manufacturer} {card.model}".strip(),
                short_size(1024.0 * card.memory or None),
                f"{card.power_limit}W" if card.power_limit else "-", card.driver, card.address,
            ]
            for card in info.cards
        ]  # fmt: skip
        lines += ["", *format_rows(_CARDS, rows, width, style)]
    if info.software:
        names = [[one.name or one.key, one.version] for one in info.software]
        lines += ["", *format_rows(_SOFTWARE, names, width, style)]
    return lines
