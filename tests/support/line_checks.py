"""Checks of a message against the specification of ClusterCockpit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.records.line_protocol import CATEGORIES
from ccagent.records.points import NAME, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.records.line_protocol import Category, Line

TYPES = ("node", "socket", "die", "memoryDomain", "llc", "core", "hwthread", "accelerator")
LOG_LEVELS = ("debug", "info", "warn", "error")
"""Valid values of the tags `type` and `loglevel`."""


def check_message(line: Line, *, node_id: bool = False) -> list[str]:
    """Return a sentence for each violation of ClusterCockpit's specification.

    node_id: metrics of type=node may have a type-id, as the specification recommends. The store
    hides such values if the same metric also has values without a type-id.
    """
    category, tags = line.category, line.tags
    if category is None:
        return [f"field {shorten(line.field)} is none of {', '.join(CATEGORIES)}"]
    # A control without hostname addresses all nodes.
    mandatory = {"metric": ("cluster", "hostname", "type"), "control": ("type",)}
    keys = mandatory.get(category, ("hostname", "type"))
    missing = [f"no tag {key}" for key in keys if not tags.get(key)]
    missing += _check_scope(tags, is_metric=category == "metric", node_id=node_id)
    missing += _check_content(line, category)
    if line.time is None:
        missing.append("no time")
    return missing


def _check_scope(tags: dict[str, str], *, is_metric: bool, node_id: bool) -> Iterator[str]:
    scope, number, part = tags.get("type"), tags.get("type-id"), tags.get("stype")
    if scope and scope not in TYPES:
        yield f"type {shorten(scope)} is none of {', '.join(TYPES)}"
    elif scope and scope != "node" and not number:
        yield f"type {scope} without type-id"
    elif scope == "node" and number and is_metric and not node_id:
        yield "type node with type-id: the store hides it beside values without"
    if bool(part) != bool(tags.get("stype-id")):
        yield "stype and stype-id go together"
    elif part and scope == "node" and is_metric:
        yield "type node with stype: the store ignores stype, one value overwrites the other"


def _check_content(line: Line, category: Category) -> Iterator[str]:
    tags, value = line.tags, line.value
    if category == "metric":
        if isinstance(value, bool | str):
            yield "the value of a metric is not a number"
    elif not isinstance(value, str):
        yield f"the {category} is not a string"
    if category in {"metric", "event"} and NAME.fullmatch(line.measurement) is None:
        yield f"name {shorten(line.measurement)}: letters, digits and '_' only"
    if category == "event" and line.measurement == "job" and not tags.get("function"):
        yield "no tag function"
    # cc-node-controller calls it `level` and writes it in capitals.
    level = tags.get("loglevel", tags.get("level", "")).lower()
    if category == "log" and level not in LOG_LEVELS:
        yield f"no tag loglevel of {', '.join(LOG_LEVELS)}"
    method = tags.get("method")
    if category == "control" and method not in {"GET", "PUT"}:
        yield "no tag method of GET, PUT"
    elif category == "control" and method == "GET" and value:
        yield "GET with a value"
