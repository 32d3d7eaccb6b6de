"""Output of `ccagent metrics --list`: all metrics and their availability on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from ccagent.agents.metrics.agent import MetricsAgent
    from ccagent.agents.metrics.readers.base import Reader
    from ccagent.machine.node import Node

_BETWEEN = 0.05


def format_metrics(agent: MetricsAgent, node: Node) -> str:
    """Return a table: name, unit, type, source, and availability or the reason without it."""
    rows = [("metric", "unit", "type", "here", "source")]
    agent.custom.begin(node)
    everything: set[str] = set()
    found = [_Found(reader) for reader in agent.readers]
    for each in found:
        each.read(node)
    # Shares of time exist from the second reading on.
    node.clock.sleep(_BETWEEN)
    for each in found:
        each.read(node)
        everything |= each.seen
        rows += (_row(agent, name, each.state(name)) for name in sorted(each.reader.metrics))
    everything |= {each.metric for each in agent.collect_custom(node, waits=True)}
    find_missing = agent.custom.find_missing(everything)
    for name in sorted(agent.custom.metrics):
        operands = ", ".join(sorted(find_missing.get(name, ())))
        rows.append(_row(agent, name, f"no: there is no {operands}" if operands else "yes"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:{widths[0]}}  {unit:{widths[1]}}  {kind:{widths[2]}}  {here}  ({source})"
        for name, unit, kind, here, source in rows
    )


class _Found:
    """The available metrics of a reader on this machine, and the reasons for missing ones."""

    def __init__(self, reader: Reader[Any]) -> None:
        self.reader = reader
        self.seen: set[str] = set()
        self._reason = ""
        reader.wanted = frozenset(reader.metrics)
        reader.is_patient = True

    def read(self, node: Node) -> None:
        """Read once, unless an earlier reading failed."""
        if self._reason:
            return
        try:
            self.seen |= {each.metric for each in self.reader.read(node)}
        except CcagentError as error:
            self._reason = str(error)

    def state(self, name: str) -> str:
        """Return "yes", or "no" with the reason, for a metric."""
        if name in self.seen:
            return "yes"
        errors = self.reader.errors[0] if self.reader.errors else "not on this machine"
        return f"no: {self.reader.absent.get(name, self._reason or errors)}"


def _row(agent: MetricsAgent, name: str, here: str) -> tuple[str, str, str, str, str]:
    metric, output = agent.metrics[name], agent.outputs.get(name)
    return (
        name if output is None else output.name,
        metric.unit if output is None else output.unit,
        metric.type,
        f"{here}, not sent" if output is None else here,
        metric.source,
    )
