"""Process sources by their names in the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ccagent.agents.sonar.jobs.selection import ProcessSelection
    from ccagent.agents.sonar.process import ProcessSource
    from ccagent.machine.node import Node

SourceName = Literal["auto", "bpf", "procfs", "psutil"]


def open_source(name: SourceName, node: Node, selection: ProcessSelection) -> ProcessSource:
    """Open a source. Import only its module."""
    if name == "psutil":
        from ccagent.agents.sonar.sources.psutil_source import PsutilSource

        return PsutilSource(node, selection)
    if name in {"auto", "bpf"}:
        from ccagent.agents.sonar.sources.preferred import PreferredSource

        return PreferredSource(node, selection, asked=name == "bpf")
    from ccagent.agents.sonar.sources.procfs import ProcfsSource

    return ProcfsSource(node, selection)
