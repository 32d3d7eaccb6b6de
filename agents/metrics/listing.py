"""What `ccagent metrics --list` prints: each metric, and whether this machine has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from ccagent.agents.metrics.agent import MetricsAgent
    from ccagent.machine.node import Node

_BETWEEN = 0.05


def listed(agent: MetricsAgent, node: Node) -> str:
    """Give a table: name, unit, type, source, and what of it is here or why it isn't."""
    rows = [("metric", "unit", "type", "here", "source")]
    agent.custom.begin(node)
    everything: set[str] = set()
    for reader in agent.readers:
        seen: set[str] = set()
        reader.wanted = frozenset(reader.metrics)
        reason = "not on this machine"
        try:
            # Shares of time are there at the second reading.
            seen = {each.metric for each in reader.read(node)}
            node.clock.sleep(_BETWEEN)
            seen |= {each.metric for each in reader.read(node)}
        except CcagentError as error:
            reason = str(error)
        everything |= seen
        for name in sorted(reader.metrics):
            here = "yes" if name in seen else f"no: {reader.absent.get(name, reason)}"
            rows.append(_row(agent, name, here))
    everything |= {each.metric for each in agent.told(node, waits=True)}
    lacking = agent.custom.lacking(everything)
    for name in sorted(agent.custom.metrics):
        operands = ", ".join(sorted(lacking.get(name, ())))
        rows.append(_row(agent, name, f"no: there is no {operands}" if operands else "yes"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:{widths[0]}}  {unit:{widths[1]}}  {kind:{widths[2]}}  {here}  ({source})"
        for name, unit, kind, here, source in rows
    )


def _row(agent: MetricsAgent, name: str, here: str) -> tuple[str, str, str, str, str]:
    metric, sent = agent.metrics[name], agent.sent.get(name)
    return (
        name if sent is None else sent.name,
        metric.unit if sent is None else sent.unit,
        metric.type,
        f"{here}, not sent" if sent is None else here,
        metric.source,
    )
