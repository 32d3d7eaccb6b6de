"""The status of a running daemon, as JSON and as a log line."""

from __future__ import annotations

from typing import Any

import msgspec

from ccagent.counters import AgentCounters, SinkCounters


class Status(msgspec.Struct, rename="kebab", kw_only=True):
    """The identity of a daemon, and the counters of its agents and sinks since its start.

    seconds, cpu_seconds: since the start. resident_memory: KB. restarts: of the scheduling loop and
    the status socket, after unforeseen errors. details: reports of agents, by agent.
    """

    version: str
    cluster: str
    node: str
    pid: int
    seconds: float
    cpu_seconds: float
    resident_memory: int
    agents: dict[str, AgentCounters]
    sinks: dict[str, SinkCounters]
    restarts: int = 0
    details: dict[str, dict[str, Any]] = {}

    def json(self) -> bytes:
        """Return the status as JSON."""
        return msgspec.json.encode(self)

    def line(self) -> str:
        """Return the status as one line for the log."""
        parts = [f"{self.seconds:.0f} s, {self.cpu_seconds:.2f} s CPU, {self.resident_memory} KB"]
        if self.restarts:
            parts.append(f"restarted {self.restarts} times")
        for name, agent in self.agents.items():
            parts.append(
                f"agent {name}: {agent.samples} samples, {agent.errors} errors, "
                f"{agent.skipped} skipped, {agent.restarts} restarts, "
                f"{agent.cpu_seconds:.3f} s CPU"
            )
        for name, sink in self.sinks.items():
            parts.append(
                f"sink {name}: {sink.queued} queued, {sink.backlog} backlog, {sink.sent} sent, "
                f"{sink.acknowledged} acknowledged, {sink.retried} retried, "
                f"{sink.rejected} rejected, {sink.dropped} dropped, {sink.restarts} restarts"
            )
        return "; ".join(parts)


def parse(content: bytes) -> Status:
    """Return the status in the JSON of `Status.json`. Raise msgspec.MsgspecError."""
    return msgspec.json.decode(content, type=Status)
