"""Reader of I/O of this node in GPFS (IBM Storage Scale) file systems, by mmpmon."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Scope
from ccagent.agents.metrics.readers.labels import clean_label
from ccagent.agents.metrics.readers.mmpmon import parse_fs_io_s
from ccagent.agents.metrics.readers.program_reader import (
    ProgramReader,
    ProgramReaderSettings,
)
from ccagent.errors import NotHereError, ProgramError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo

if TYPE_CHECKING:
    from ccagent.agents.metrics.readers.program_reader import Programs
    from ccagent.machine.node import Node

_REQUEST = b"once fs_io_s\n"
_METRICS = {
    "gpfs_read": ("B/s", "bytes_read", "bytes read, from disks and cache", "_br_"),
    "gpfs_write": ("B/s", "bytes_written", "bytes written, to disks and cache", "_bw_"),
    "gpfs_opens": ("1/s", "opens", "open() calls, including creat()", "_oc_"),
    "gpfs_closes": ("1/s", "closes", "close() calls", "_cc_"),
    "gpfs_reads": ("1/s", "reads", "read() calls", "_rdc_"),
    "gpfs_writes": ("1/s", "writes", "write() calls", "_wc_"),
    "gpfs_readdirs": ("1/s", "readdirs", "readdir() calls", "_dir_"),
    "gpfs_inode_updates": ("1/s", "inode_updates", "updates of inodes on disk", "_iu_"),
}
"""By metric: unit, field of GpfsCounters, description, keyword of mmpmon."""


class GpfsSettings(ProgramReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.gpfs]."""

    command: Annotated[
        tuple[str, ...],
        Meta(
            description="mmpmon and its arguments; ccagent writes the request to its standard input"
        ),
    ] = ("/usr/lpp/mmfs/bin/mmpmon", "-p", "-s")
    exclude: Annotated[tuple[str, ...], Meta(description="patterns of file systems to skip")] = ()

    def __post_init__(self) -> None:
        self.check_command(self.command)
        if not self.command:
            raise ValueError("command: empty")


class GpfsReader(ProgramReader[GpfsSettings]):
    """Each GPFS file system. mmpmon runs only if a metric is wanted, and needs root."""

    name = "gpfs"
    Settings = GpfsSettings
    metrics: ClassVar[dict[str, Metric]] = {
        name: Metric(
            unit=unit,
            type="node",
            description=f"{description}, by file system (stype filesystem)",
            source=f"mmpmon -p, fs_io_s: {keyword}",
            is_default=False,
        )
        for name, (unit, _, description, keyword) in _METRICS.items()
    }

    def targets(self, node: Node) -> list[str]:
        """Return one target if a GPFS file system is mounted: mmpmon reports all file systems."""
        mounts = read_parsed(node, MOUNTINFO, parse_mountinfo)
        if not any(mount.type == "gpfs" for mount in mounts):
            raise NotHereError(f"/{MOUNTINFO}: no GPFS file system")
        return ["gpfs"]

    def collect(
        self,
        programs: Programs,
        targets: list[str],  # noqa: ARG002 - only one target
    ) -> tuple[list[Gauge | Count], list[str]]:
        """Run mmpmon, and parse the counters of each file system."""
        try:
            output = programs.run(self.settings.command, _REQUEST)
        except NotHereError as error:
            raise ProgramError(f"{error}; see agents.metrics.gpfs.command") from error
        systems, problems = parse_fs_io_s(output)
        values: list[Gauge | Count] = []
        for name, counters in systems.items():
            label = clean_label(name)
            if not label or any(fnmatchcase(name, each) for each in self.settings.exclude):
                continue
            scope = Scope(stype="filesystem", stype_id=label)
            values += (
                Count(metric, getattr(counters, field), scope)
                for metric, (_, field, _, _) in _METRICS.items()
            )
        return values, problems
