"""Reader of I/O of this node in GPFS (IBM Storage Scale) file systems, by mmpmon.

Source: IBM Storage Scale, "Display I/O statistics per mounted file system".
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Scope
from ccagent.agents.metrics.readers.program_reader import ProgramReader, ProgramReaderSettings
from ccagent.errors import NotHereError, ProgramError, UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, parse_mountinfo
from ccagent.machine.sensors import clean_label
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from ccagent.agents.metrics.readers.program_reader import RunProgram
    from ccagent.machine.node import Node


_RESPONSE = "_fs_io_s_"
_METRICS = {
    "gpfs_read": ("_br_", "B/s", "bytes read, from disks and cache"),
    "gpfs_write": ("_bw_", "B/s", "bytes written, to disks and cache"),
    "gpfs_opens": ("_oc_", "1/s", "open() calls, including creat()"),
    "gpfs_closes": ("_cc_", "1/s", "close() calls"),
    "gpfs_reads": ("_rdc_", "1/s", "read() calls"),
    "gpfs_writes": ("_wc_", "1/s", "write() calls"),
    "gpfs_readdirs": ("_dir_", "1/s", "readdir() calls"),
    "gpfs_inode_updates": ("_iu_", "1/s", "updates of inodes on disk"),
}
"""By metric: keyword of mmpmon, unit, description."""


def parse_fs_io_s(content: bytes) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Return the counters by file system and metric, and a message for each unusable line.

    If two clusters have file systems of equal name, the names are `NAME@CLUSTER`. Raise
    UnparsableError if no line has a file system.
    """
    found: dict[tuple[str, str], dict[str, int]] = {}
    problems: list[str] = []
    is_any = False
    text = content.decode("utf-8", "replace")
    # The last line of an interrupted program is incomplete.
    for line in text.split("\n")[:-1]:
        words = line.split()
        if not words or words[0] != _RESPONSE:
            continue
        is_any = True
        fields = dict(zip(words[1::2], words[2::2], strict=False))
        name = fields.get("_fs_", "")
        try:
            found[name, fields.get("_cl_", "")] = _parse_counters(name, fields)
        except UnparsableError as error:
            problems.append(f"mmpmon: file system {name[:80]!r}: {error}")
    if not is_any:
        raise UnparsableError(f"mmpmon printed no file system: {text[:80]!r}")
    names = [name for name, _ in found]
    return {
        f"{name}@{cluster}" if names.count(name) > 1 else name: counters
        for (name, cluster), counters in found.items()
    }, problems


def _parse_counters(name: str, fields: dict[str, str]) -> dict[str, int]:
    if not name:
        raise UnparsableError("_fs_: no name")
    if fields.get("_rc_") != "0":
        raise UnparsableError(f"status {fields.get('_rc_', 'missing')[:20]}")
    numbers: dict[str, int] = {}
    for metric, (keyword, _, _) in _METRICS.items():
        word = fields.get(keyword, "")
        if not (word.isascii() and word.isdecimal()) or len(word) > 20:
            raise UnparsableError(f"{keyword}: not a number: {word[:40]!r}")
        numbers[metric] = int(word)
        if numbers[metric] > LARGEST_UINT:
            raise UnparsableError(f"{keyword}: out of range: {word}")
    return numbers


_REQUEST = b"once fs_io_s\n"


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
    is_exposed = False
    Settings = GpfsSettings
    metrics: ClassVar[dict[str, Metric]] = {
        name: Metric(
            unit=unit,
            type="node",
            description=f"{description}, by file system (stype filesystem)",
            source=f"mmpmon -p, fs_io_s: {keyword}",
            is_default=False,
        )
        for name, (keyword, unit, description) in _METRICS.items()
    }

    def targets(self, node: Node) -> list[str]:
        """Return one target if a GPFS file system is mounted: mmpmon reports all file systems."""
        mounts = read_parsed(node, MOUNTINFO, parse_mountinfo)
        if not any(mount.type == "gpfs" for mount in mounts):
            raise NotHereError(f"/{MOUNTINFO}: no GPFS file system")
        return ["gpfs"]

    def collect(
        self,
        run: RunProgram,
        targets: list[str],  # noqa: ARG002 - only one target
    ) -> tuple[list[Gauge | Count], list[str]]:
        """Run mmpmon, and parse the counters of each file system."""
        try:
            output = run(self.settings.command, standard_input=_REQUEST)
        except NotHereError as error:
            raise ProgramError(f"{error}; see agents.metrics.gpfs.command") from error
        systems, problems = parse_fs_io_s(output)
        values: list[Gauge | Count] = []
        for name, counters in systems.items():
            label = clean_label(name)
            if not label or any(fnmatchcase(name, each) for each in self.settings.exclude):
                continue
            scope = Scope(stype="filesystem", stype_id=label)
            values += (Count(metric, value, scope) for metric, value in counters.items())
        return values, problems
