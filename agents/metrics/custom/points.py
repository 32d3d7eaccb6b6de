"""Values of commands and files: line protocol of this node.

A line is a metric with at most the tags `type`, `type-id`, `stype` and `stype-id`. Its time is
ignored: all values have the time of the sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from msgspec import structs

from ccagent.agents.metrics.readers.base import NODE, Gauge, Metric, Scope, ScopeType
from ccagent.machine.gpu.vendor import parse_address
from ccagent.records.line_protocol.encoding import NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ccagent.machine.node import Node
    from ccagent.records.line_protocol.lines import Line

TYPES: tuple[ScopeType, ...] = get_args(ScopeType)

_MOST_NAMES = 1000
_MOST_POINTS = 20_000
_MOST_COMPLAINTS = 10
_LONGEST_TAG = 256
_LONGEST_NUMBER = 9
_SHOWN = 60
_SCOPE_TAGS = frozenset({"type", "type-id", "stype", "stype-id"})


def parse_points(
    content: bytes, cluster: str, hostname: str, complain: Callable[[str], None]
) -> Iterator[Gauge]:
    """Yield the values of lines in UTF-8. Report each bad line to `complain` and skip it.

    A line may name only this cluster and this host. Tags outside of a scope are dropped and
    reported.
    """
    from ccagent.records.line_protocol.decoding import decode_lines

    # Bytes that are not UTF-8 become surrogates; these make a line invalid.
    text = content.decode("utf-8", "surrogateescape")
    for line in decode_lines(text, complain=lambda error: complain(str(error))):
        try:
            yield _gauge(line, {"cluster": cluster, "hostname": hostname}, complain)
        except ValueError as error:
            complain(f"{line.measurement[:_SHOWN]}: {error}")


def _gauge(line: Line, own: dict[str, str], complain: Callable[[str], None]) -> Gauge:
    """Return the value of a line. Raise ValueError if it is invalid."""
    if line.category != "metric" or isinstance(line.value, bool | str):
        raise ValueError(f"{line.field[:_SHOWN]} is no metric, whose field is value=NUMBER")
    if NAME.fullmatch(line.measurement) is None or len(line.measurement) > _LONGEST_TAG:
        raise ValueError("a metric's name has letters, digits and '_' only")
    for key, name in own.items():
        if line.tags.get(key, name) != name:
            raise ValueError(f"{key} {line.tags[key][:_SHOWN]!r} is not this one, {name!r}")
    more = line.tags.keys() - _SCOPE_TAGS - own.keys()
    if more:
        complain(
            f"{line.measurement}: tag {min(more)[:_SHOWN]!r} is dropped: it is not part of a scope"
        )
    return Gauge(line.measurement, float(line.value), _parse_scope(line.tags))


def _parse_scope(tags: dict[str, str]) -> Scope:
    """Return the scope of tags. Raise ValueError if they are no scope."""
    kind = tags.get("type", "node")
    if kind not in TYPES:
        raise ValueError(f"type {kind[:_SHOWN]!r} is none of {', '.join(TYPES)}")
    number = ""
    if kind != "node":
        number = tags.get("type-id", "")
        if kind == "accelerator":
            number = parse_address(number) or number
        elif not number.isascii() or not number.isdecimal() or len(number) > _LONGEST_NUMBER:
            raise ValueError(f"type {kind} needs a number as type-id, not {number[:_SHOWN]!r}")
    stype, stype_id = tags.get("stype", ""), tags.get("stype-id", "")
    if bool(stype) != bool(stype_id):
        raise ValueError("stype and stype-id go together")
    if kind == "accelerator" and not number:
        raise ValueError("type accelerator needs a type-id")
    for text in (number, stype, stype_id):
        if not is_sendable(text):
            raise ValueError(f"a tag cannot be sent: {text[:_SHOWN]!r}")
    return Scope(kind, number, stype, stype_id)


def is_sendable(text: str) -> bool:
    """Return whether a text is empty or a valid tag value in line protocol."""
    return text.isprintable() and not text.endswith("\\") and len(text) <= _LONGEST_TAG


class CustomMetrics:
    """Metrics of commands and files. Each belongs to its first source.

    taken: names of other metrics.
    """

    def __init__(self, taken: Collection[str]) -> None:
        self.metrics: dict[str, Metric] = {}
        self._taken = taken

    def gauges(self, source: str, content: bytes, node: Node, errors: list[str]) -> list[Gauge]:
        """Return the values of a source. Rejected values are reported in `errors`.

        Node values come last: the store keeps the last value of a name.
        """
        complaints: list[str] = []
        found: dict[tuple[str, Scope], Gauge] = {}
        for gauge in parse_points(content, node.cluster, node.hostname, complaints.append):
            key = (gauge.metric, gauge.scope)
            problem = f"{gauge.metric}: two values of the same scope" if key in found else ""
            problem = problem or self._refusal(source, gauge)
            if problem:
                complaints.append(problem)
            elif len(found) == _MOST_POINTS:
                complaints = [f"more than {_MOST_POINTS} values: the rest is dropped", *complaints]
                break
            else:
                found[key] = gauge
        complaints = [*dict.fromkeys(complaints)]
        errors += [f"{source}: {complaint}" for complaint in complaints[:_MOST_COMPLAINTS]]
        if len(complaints) > _MOST_COMPLAINTS:
            errors.append(f"{source}: {len(complaints) - _MOST_COMPLAINTS} more complaints")
        return sorted(found.values(), key=lambda gauge: gauge.scope == NODE)

    def _refusal(self, source: str, gauge: Gauge) -> str:
        """Register the metric of a value. Return why the value is rejected; empty if accepted."""
        name, kind = gauge.metric, gauge.scope.type
        if name in self._taken:
            return f"{name}: a metric of ccagent has this name"
        metric = self.metrics.get(name)
        if metric is None:
            if len(self.metrics) >= _MOST_NAMES:
                return f"{name}: there are {_MOST_NAMES} metrics of commands and files already"
            self.metrics[name] = Metric(unit="", type=kind, description="", source=source)
        elif metric.source != source:
            return f"{name}: a metric of {metric.source}"
        elif metric.type == "node" != kind:
            self.metrics[name] = structs.replace(metric, type=kind)
        return ""
