"""The status of a running daemon: as JSON, as a log line, as a table."""

from __future__ import annotations

from typing import Any

import msgspec

from ccagent.counters import AgentCounters, SinkCounters
from ccagent.log import printable

_AGENTS = f"{'agent':20} {'samples':>9} {'errors':>8} {'skipped':>9} {'seconds':>10} {'CPU s':>9}"
_SINKS = (
    f"{'sink':20} {'queued':>9} {'backlog':>8} {'sent':>9} {'acknowledged':>13} "
    f"{'retried':>8} {'rejected':>8} {'dropped':>8}"
)


class Status(msgspec.Struct, rename="kebab", kw_only=True):
    """A daemon: who it is, and what its agents and sinks have done since it started.

    seconds, cpu_seconds: since the start. resident_memory: KB. restarts: of the scheduling loop and
    the status socket, after errors that nobody foresaw. details: what agents describe of
    themselves, by name.
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
        """Return it as JSON."""
        return msgspec.json.encode(self)

    def line(self) -> str:
        """Return it as one line for the log."""
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

    def table(self) -> str:
        """Return it as a table for a terminal."""
        used = f"{self.cpu_seconds:.2f} s CPU, {self.resident_memory} KB resident"
        lines = [
            f"ccagent {self.version}, process {self.pid}, node {self.node} of {self.cluster}",
            f"running {self.seconds:.0f} s, {used}" + _restarts_text(self.restarts),
            "",
            _AGENTS,
        ]
        lines += [
            f"{printable(name):20} {agent.samples:9} {agent.errors:8} {agent.skipped:9} "
            f"{agent.seconds:10.3f} {agent.cpu_seconds:9.3f}" + _restarts_text(agent.restarts)
            for name, agent in self.agents.items()
        ]
        lines += ["", _SINKS]
        for name, sink in self.sinks.items():
            lines.append(
                f"{printable(name):20} {sink.queued:9} {sink.backlog:8} {sink.sent:9} "
                f"{sink.acknowledged:13} {sink.retried:8} {sink.rejected:8} {sink.dropped:8}"
            )
            if sink.damaged:
                lines.append(f"  {sink.damaged} messages in the queue were damaged")
            if sink.restarts:
                lines.append(f"  went on after {sink.restarts} unforeseen errors; see the log")
            lines += [
                f"  {printable(error)}" for error in (sink.queue_error, sink.last_error) if error
            ]
        return "\n".join(lines) + "\n"


def _restarts_text(times: int) -> str:
    """Return what a line of the table says of restarts: nothing where there were none."""
    return f"  (restarted {times} times after an error: see the log)" if times else ""


def parse(content: bytes) -> Status:
    """Read what `Status.json` wrote. Raises msgspec.MsgspecError."""
    return msgspec.json.decode(content, type=Status)
