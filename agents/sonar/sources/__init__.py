"""Sources of processes by their names in the configuration, and the choice of the source `auto`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from ccagent.agents.sonar.process import Process, ProcessSelection, ProcessSource
from ccagent.errors import CcagentError, ConfigurationError, NotHereError
from ccagent.log import logger
from ccagent.machine.bpf import pins

if TYPE_CHECKING:
    from ccagent.agents.sonar.sources.bpf import BpfSource
    from ccagent.machine.node import Node

SourceName = Literal["auto", "bpf", "procfs", "psutil"]

_RETRY_EVERY = 20
"""Readings of /proc between two attempts to open the iterator."""


def open_source(name: SourceName, node: Node, selection: ProcessSelection) -> ProcessSource:
    """Open a source. Import only its module."""
    if name == "psutil":
        try:
            from ccagent.agents.sonar.sources.psutil_source import PsutilSource
        except ModuleNotFoundError:
            from ccagent.machine.interpreter import install_command

            raise ConfigurationError(
                f"agents.sample.source: psutil is missing: {install_command('psutil')}"
            ) from None
        return PsutilSource(node, selection)
    if name in {"auto", "bpf"}:
        return PreferredSource(node, selection, asked=name == "bpf")
    from ccagent.agents.sonar.sources.procfs import ProcfsSource

    return ProcfsSource(node, selection)


class PreferredSource(ProcessSource):
    """The cheapest source that works. Both return equal records; the unused one isn't imported.

    asked: the configuration names `bpf`. Then an iterator that was never loaded is logged too.
    """

    def __init__(
        self,
        node: Node,
        selection: ProcessSelection,
        *,
        asked: bool = False,
        directory: str = pins.DIRECTORY,
    ) -> None:
        self.name = "bpf"
        self._node = node
        self._selection = selection
        self._asked = asked
        self._directory = directory
        self._source: ProcessSource
        self._readings = 0
        self._was_used = False
        super().__init__()
        try:
            self._source = self._open_bpf()
        except CcagentError as error:
            self._fall_back(error)

    def begin(self) -> None:
        """Take a first reading of CPU times."""
        try:
            self._source.begin()
        except CcagentError as error:
            self._fall_back(error)
            self._source.begin()

    def read(self) -> list[Process]:
        """Return all wanted processes."""
        try:
            processes = self._source.read()
        except CcagentError as error:
            self._fall_back(error)
            processes = self._source.read()
        source = self._source
        self.name, self.errors, self.counts_ended = source.name, source.errors, source.counts_ended
        if source.name == "bpf":
            self._was_used = True
            return processes
        self._readings += 1
        if self._readings % _RETRY_EVERY == 0:
            # Read the iterator once; the next reading then has utilisation.
            with suppress(CcagentError):
                bpf = self._open_bpf()
                bpf.begin()
                source.close()
                self._source = bpf
        return processes

    def close(self) -> None:
        """Close the files of /proc, if they are open."""
        self._source.close()

    def _open_bpf(self) -> BpfSource:
        """Open the iterator if it is pinned. Raise CcagentError if that fails."""
        self._node.inode(f"{self._directory.strip('/')}/{pins.TASKS}")
        from ccagent.agents.sonar.sources.bpf import BpfSource

        return BpfSource(self._node, self._selection, self._directory)

    def _fall_back(self, error: CcagentError) -> None:
        """Read /proc instead of the iterator."""
        from ccagent.agents.sonar.sources.procfs import ProcfsSource

        self._source = ProcfsSource(self._node, self._selection)
        self.name, self.counts_ended = "procfs", False
        if self._asked or self._was_used or not isinstance(error, NotHereError):
            logger.warning("agent sample: source bpf: %s; processes are read from /proc", error)
