"""Sorting and filtering of tables by parameters of the address; the table of nodes."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ccagent.views.web.data.nodes import NodeNow

    NodeState = tuple[str, str]
    """Shape and word of a state."""

T = TypeVar("T")


class SortedColumn(NamedTuple):
    """A column's title, with the address of the table sorted by it.

    link: "" for a column without order. sort: `ascending` or `descending` if the table has this
    order, else empty.
    """

    title: str
    link: str
    sort: str = ""


def sort_columns(
    columns: Sequence[tuple[str, str]],
    chosen: str,
    path: str,
    query: Mapping[str, str],
    *,
    part: str = "",
) -> list[SortedColumn]:
    """Return the columns of a table, with the addresses of its orders.

    columns: order of the first click, and title; `-` before an order means the largest first, ""
    no order. chosen: the order of the table. part: id of the table in its page.
    """
    found: list[SortedColumn] = []
    for order, title in columns:
        name = order.removeprefix("-")
        is_chosen = bool(name) and name == chosen.removeprefix("-")
        turned = name if chosen.startswith("-") else f"-{name}"
        address = urlencode({**query, "sort": turned if is_chosen else order})
        sort = "descending" if chosen.startswith("-") else "ascending"
        found.append(
            SortedColumn(
                title,
                f"{path}?{address}{'#' if part else ''}{part}" if order else "",
                sort if is_chosen else "",
            )
        )
    return found


def find_order(text: str, columns: Iterable[tuple[str, str]], default: str) -> str:
    """Return the order of the parameter `sort`; the default for an unknown one."""
    known = {order.removeprefix("-") for order, _ in columns if order}
    return text if text.removeprefix("-") in known else default


def sort_by_figure(
    rows: Sequence[T], figure: Callable[[T], float | None], *, is_down: bool
) -> list[T]:
    """Return rows in the order of their figures; those with an unknown figure last."""
    values = [(figure(row), row) for row in rows]
    known = [(value, row) for value, row in values if value is not None]
    known.sort(key=lambda pair: pair[0], reverse=is_down)
    return [row for _, row in known] + [row for value, row in values if value is None]


class NumberRange(NamedTuple):
    """A range of a filter: [low, high), for whole numbers [low, high]."""

    low: float = -math.inf
    high: float = math.inf
    is_whole: bool = False

    def contains(self, value: float | None) -> bool:
        """Return whether a known value is in the range."""
        if value is None or value < self.low:
            return False
        return value <= self.high if self.is_whole else value < self.high


class RangeFilter(NamedTuple):
    """A filter by a range. example: a range as text. units: factor by suffix.

    bins: the ranges of the histogram, as text.
    """

    title: str
    example: str
    units: Mapping[str, float]
    bins: tuple[str, ...]
    is_whole: bool = False

    def parse(self, text: str) -> NumberRange | None:
        """Return the range of a text such as `2-8`, `30m-`, `-50`; None for another text."""
        text = text.replace(" ", "").replace("%", "").lower()
        match = _RANGE.fullmatch(text)
        if match is None or not (match["low"] or match["high"]):
            return None
        factors = [self.units.get(match[one] or "") for one in ("low_unit", "high_unit")]
        if None in factors:
            return None
        low = float(match["low"]) * (factors[0] or 0) if match["low"] else -math.inf
        high = float(match["high"]) * (factors[1] or 0) if match["high"] else math.inf
        if not match["dash"] and self.is_whole:
            high = low
        return NumberRange(low, high, self.is_whole)


_RANGE = re.compile(
    r"(?:(?P<low>\d{1,9}(?:\.\d{1,6})?)(?P<low_unit>[a-z]{0,3}))?"
    r"(?P<dash>-)?(?:(?P<high>\d{1,9}(?:\.\d{1,6})?)(?P<high_unit>[a-z]{0,3}))?",
    re.ASCII,
)
_TIMES = {"": 3600.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PLAIN = {"": 1.0}
_ENERGY = {"": 1.0, "wh": 1e-3, "kwh": 1.0, "mwh": 1e3}
_TENTHS = (*(f"{n}-{n + 10}" for n in range(0, 90, 10)), "90-")

RANGES: dict[str, RangeFilter] = {
    "ran": RangeFilter(
        "run time", "30m-12h", _TIMES, ("0s-5m", "5m-30m", "30m-2h", "2h-8h", "8h-24h", "1d-")
    ),
    "nodes": RangeFilter("nodes", "2-8", _PLAIN, ("1", "2-3", "4-7", "8-15", "16-31", "32-"), True),
    "cpu": RangeFilter("CPU use in %", "0-50", _PLAIN, _TENTHS),
    "memory": RangeFilter("memory use in %", "0-50", _PLAIN, _TENTHS),
    "gpu": RangeFilter("GPU use in %", "0-15", _PLAIN, _TENTHS),
    "energy": RangeFilter(
        "energy in kWh", "1-10", _ENERGY, ("0-0.1", "0.1-1", "1-10", "10-100", "100-")
    ),
}
"""Filters of the list of jobs by parameter."""


class HistogramBin(NamedTuple):
    """A bar: its range, the number of jobs in it, the address of the list of these jobs."""

    name: str
    jobs: int
    link: str


class Histogram(NamedTuple):
    """The distribution of a figure over a list of jobs. unknown: jobs without the figure."""

    title: str
    bins: list[HistogramBin]
    unknown: int

    @property
    def most(self) -> int:
        """Return the count of the longest bar, at least 1."""
        return max(1, *(one.jobs for one in self.bins))


def make_histogram(
    name: str, values: Sequence[float | None], path: str, query: Mapping[str, str]
) -> Histogram:
    """Return the histogram of a filter's figure. Each bar leads to its part of the list."""
    wanted = RANGES[name]
    bins: list[HistogramBin] = []
    for text in wanted.bins:
        range_ = wanted.parse(text)
        count = sum(range_.contains(one) for one in values) if range_ is not None else 0
        link = f"{path}?{urlencode({**query, name: text})}"
        bins.append(HistogramBin(text, count, link))
    return Histogram(wanted.title, bins, sum(one is None for one in values))


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
    return sort_by_figure(found, lambda one: _figure(one[0], one[1][1], name), is_down=is_down)


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
    figures = node._asdict()
    del figures["name"], figures["first"], figures["cards"], figures["coverage"]
    return {
        "node": node.name.encode("utf-8", "replace").decode(),
        "state": state[1],
        **figures,
        "gpus": [
            card._asdict() | {"name": card.name.encode("utf-8", "replace").decode()}
            for card in node.cards
        ],
        "coverage": dict(node.coverage),
    }
