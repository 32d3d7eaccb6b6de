"""Process sources by their names in the configuration, and the choice of the source `auto`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from ccagent.agents.sonar.process import Process, ProcessSelection, ProcessSource
from ccagent.errors import CcagentError, ConfigurationError, NotHereError
from ccagent.log import logger
from ccagent.machine.bpf import pins

if TYPE_CHECKING:
    from ccagent.agents.sonar.sources.bpf import BpfSource
    from ccagent.agents.sonar.sources.procfs import ProcfsSource
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
        self._bpf: BpfSource | None = None
        self._procfs: ProcfsSource | None = None
        self._readings = 0
        self._was_used = False
        try:
            self._bpf = self._open_bpf()
        except CcagentError as error:
            self._fall_back(error)

    @property
    def errors(self) -> list[str]:
        """Return the errors of the last reading, one sentence each."""
        source = self._procfs or self._bpf
        return [] if source is None else source.errors

    def begin(self) -> None:
        """Take a first reading of CPU times."""
        if self._bpf is not None:
            try:
                self._bpf.begin()
            except CcagentError as error:
                self._fall_back(error)
            else:
                return
        self._open_procfs().begin()

    def read(self) -> list[Process]:
        """Return all wanted processes."""
        if self._bpf is not None:
            # If the iterator was loaded meanwhile, its first reading was at the last sample.
            self.close()
            self.name, self._procfs = "bpf", None
            try:
                processes = self._bpf.read()
            except CcagentError as error:
                self._fall_back(error)
            else:
                self.counts_ended, self._was_used = self._bpf.counts_ended, True
                return processes
        processes = self._open_procfs().read()
        self._readings += 1
        if self._readings % _RETRY_EVERY == 0:
            # Read the iterator once; the next reading then has utilisation.
            with suppress(CcagentError):
                bpf = self._open_bpf()
                bpf.begin()
                self._bpf = bpf
        return processes

    def close(self) -> None:
        """Close the files of /proc, if they are open."""
        if self._procfs is not None:
            self._procfs.close()

    def _open_bpf(self) -> BpfSource:
        """Open the iterator if it is pinned. Raise CcagentError if that fails."""
        self._node.inode(f"{self._directory.strip('/')}/{pins.TASKS}")
        from ccagent.agents.sonar.sources.bpf import BpfSource

        return BpfSource(self._node, self._selection, self._directory)

    def _open_procfs(self) -> ProcfsSource:
        if self._procfs is None:
            from ccagent.agents.sonar.sources.procfs import ProcfsSource

            self._procfs = ProcfsSource(self._node, self._selection)
        return self._procfs

    def _fall_back(self, error: CcagentError) -> None:
        self.name, self.counts_ended, self._bpf = "procfs", False, None
        self._open_procfs()
        if self._asked or self._was_used or not isinstance(error, NotHereError):
            logger.warning("agent sample: source bpf: %s; processes are read from /proc", error)
