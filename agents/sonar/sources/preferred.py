"""The process sources `auto` and `bpf`: the pinned iterator while it can be read, else /proc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError
from ccagent.log import logger
from ccagent.machine.bpf import pins

if TYPE_CHECKING:
    from ccagent.agents.sonar.jobs.selection import ProcessSelection
    from ccagent.agents.sonar.process import Process
    from ccagent.agents.sonar.sources.bpf import BpfSource
    from ccagent.agents.sonar.sources.procfs import ProcfsSource
    from ccagent.machine.node import Node

_RETRY_EVERY = 20
"""Readings of /proc between two attempts to open the iterator: it may have been loaded since."""


class PreferredSource:
    """The cheaper source that works. Both return equal records; the other one is not imported.

    asked: the configuration names `bpf`; then the log has the reason also where it was never
    loaded.
    """

    def __init__(
        self,
        node: Node,
        selection: ProcessSelection,
        *,
        asked: bool = False,
        directory: str = pins.DIRECTORY,
    ) -> None:
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
    def name(self) -> str:
        """Return the source of the last reading: `bpf` or `procfs`."""
        return "bpf" if self._procfs is None else "procfs"

    @property
    def counts_ended(self) -> bool:
        """Return whether the last reading had what processes used that have ended."""
        return self._procfs is None and self._bpf is not None and self._bpf.counts_ended

    @property
    def errors(self) -> list[str]:
        """Return what could not be read or parsed at the last reading, a sentence each."""
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
        """Read all wanted processes."""
        if self._bpf is not None and self._procfs is not None:
            # It was loaded meanwhile, and its first reading was at the last sample.
            self._procfs.close()
            self._procfs = None
        if self._bpf is not None:
            try:
                processes = self._bpf.read()
            except CcagentError as error:
                self._fall_back(error)
            else:
                self._was_used = True
                return processes
        processes = self._open_procfs().read()
        self._readings += 1
        if self._readings % _RETRY_EVERY == 0:
            self._try_again()
        return processes

    def close(self) -> None:
        """Close what is open."""
        if self._procfs is not None:
            self._procfs.close()

    def _open_bpf(self) -> BpfSource:
        """Open the iterator if it is pinned. Raises CcagentError."""
        self._node.inode(f"{self._directory.strip('/')}/{pins.TASKS}")
        from ccagent.agents.sonar.sources.bpf import BpfSource

        return BpfSource(self._node, self._selection, self._directory)

    def _open_procfs(self) -> ProcfsSource:
        if self._procfs is None:
            from ccagent.agents.sonar.sources.procfs import ProcfsSource

            self._procfs = ProcfsSource(self._node, self._selection)
        return self._procfs

    def _fall_back(self, error: CcagentError) -> None:
        self._bpf = None
        self._open_procfs()
        if self._asked or self._was_used or not isinstance(error, NotHereError):
            logger.warning("agent sample: source bpf: %s; processes are read from /proc", error)

    def _try_again(self) -> None:
        """Read the iterator once, so that the next reading has utilisation."""
        try:
            bpf = self._open_bpf()
            bpf.begin()
        except CcagentError:
            return
        self._bpf = bpf
