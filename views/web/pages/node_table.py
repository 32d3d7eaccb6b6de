"""The table of a cluster's nodes, sorted and filtered by its address, and nodes as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.views.web.pages.filters import SortedColumn, find_order, sort_columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccagent.views.web.data.nodes import NodeNow

    NodeState = tuple[str, str]
    """Shape and word of a state."""

PART = "nodes"
"""Id of the table in its page."""

_COLUMNS = (
    ("node", "node"), ("state", "state"), ("-age", "newest value"), ("-cpu", "CPU"),
    ("-memory", "memory"), ("-gpu", "GPU"), ("-power", "power"),
)  # fmt: skip


def node_columns(path: str, query: Mapping[str, str]) -> list[SortedColumn]:
    """Return the columns of the table, with the addresses of its orders."""
    order = find_order(query.get("sort", ""), _COLUMNS, "node")
    return sort_columns(_COLUMNS, order, path, query, part=PART)


def choose_nodes(
    nodes: Sequence[tuple[NodeNow, NodeState]], query: Mapping[str, str]
) -> list[tuple[NodeNow, NodeState]]:
    """Return the nodes of the address: of a state, with a text in their name, in its order."""
    text, state = query.get("node", "").strip().lower(), query.get("state", "")
    found = [
        (node, each) for node, each in nodes if text in node.name.lower() and state in {"", each[1]}
    ]
    order = find_order(query.get("sort", ""), _COLUMNS, "node")
    name, is_down = order.removeprefix("-"), order.startswith("-")
    if name == "node":
        return sorted(found, key=lambda one: one[0].name, reverse=is_down)
    if name == "state":
        return sorted(found, key=lambda one: one[1][1], reverse=is_down)
    values = [(_figure(node, each[1], name), (node, each)) for node, each in found]
    known = [(value, one) for value, one in values if value is not None]
    known.sort(key=lambda pair: pair[0], reverse=is_down)
    return [one for _, one in known] + [one for value, one in values if value is None]


def _figure(node: NodeNow, state: str, name: str) -> float | None:
    """Return the figure of an order; None if unknown, as all of a silent node but its age."""
    if name == "age":
        return -node.last
    if state == "silent":
        return None
    if name == "memory":
        used, total = node.memory_used, node.memory_total
        return used / total if used is not None and total else None
    return {"cpu": node.cpu, "gpu": node.gpu, "power": node.power}[name]


def describe_node(node: NodeNow, state: NodeState) -> dict[str, Any]:
    """Return a node as an object for JSON: shares from 0 to 1, B, W. Unknown values are None."""
    return {
        "node": node.name.encode("utf-8", "replace").decode(),
        "state": state[1],
        "last": node.last,
        "step": node.step,
        "cores": node.cores,
        "cpu": node.cpu,
        "load": node.load,
        "memory_used": node.memory_used,
        "memory_total": node.memory_total,
        "power": node.power,
        "gpus": [
            {
                "name": card.name.encode("utf-8", "replace").decode(),
                "utilization": card.utilization,
                "memory": card.memory,
                "power": card.power,
            }
            for card in node.cards
        ],
        "coverage": dict(node.coverage),
    }
