"""What `ccagent metrics --list` prints: each metric, and whether this machine has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import CcagentError

if TYPE_CHECKING:
    from ccagent.agents.metrics.agent import MetricsAgent
    from ccagent.node import Node

_BETWEEN = 0.05


def listed(agent: MetricsAgent, node: Node) -> str:
    """Give a table: name, unit, type, source, and what of it is here or why it isn't."""
    rows = [("metric", "unit", "type", "here", "source")]
    for reader in agent.readers:
        seen: set[str] = set()
        reason = "not on this machine"
        try:
            # Shares of time are there at the second reading.
            seen = {each.metric for each in reader.read(node)}
            node.clock.sleep(_BETWEEN)
            seen |= {each.metric for each in reader.read(node)}
        except CcagentError as error:
            reason = str(error)
        for name, metric in sorted(reader.metrics.items()):
            sent = agent.sent.get(name)
            here = "yes" if name in seen else f"no: {reader.absent.get(name, reason)}"
            if sent is None:
                here = f"{here}, not sent"
            rows.append((
                name if sent is None else sent.name,
                metric.unit if sent is None else sent.unit,
                metric.type,
                here,
                metric.source,
            ))  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{name:{widths[0]}}  {unit:{widths[1]}}  {kind:{widths[2]}}  {here}  ({source})"
        for name, unit, kind, here, source in rows
    )
