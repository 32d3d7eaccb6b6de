"""Readers of BeeGFS and GPFS (IBM Storage Scale), by the programs of these file systems.

BeeGFS: requests of clients to its servers, by beegfs-ctl (BeeGFS 7) or beegfs (BeeGFS 8). A line
has a name and pairs of number and operation: `Sum:   56624 [sum]  10 [close]`. With an interval of
0 the numbers are those since the servers started. Source: ModeClientStats.cpp of BeeGFS 7. It
rounds bytes to six digits.

GPFS: I/O of this node, by mmpmon. Source: IBM Storage Scale, "Display I/O statistics per mounted
file system".
"""

from __future__ import annotations

import math
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from ccagent.agents.metrics.readers.base import Count, Gauge, Metric, Scope
from ccagent.agents.metrics.readers.program_reader import ProgramReader, ProgramReaderSettings
from ccagent.errors import CcagentError, NotHereError, ProgramError, UnparsableError
from ccagent.machine.parsed import read_parsed
from ccagent.machine.procfs.mountinfo import MOUNTINFO, Mount, parse_mountinfo
from ccagent.machine.sensors import clean_label
from ccagent.records.envelopes import LARGEST_UINT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.agents.metrics.readers.program_reader import RunProgram
    from ccagent.machine.node import Node

META_OPERATIONS = (
    "sum", "ack", "close", "entInf", "fndOwn", "mkdir", "create", "rddir", "refrEnt", "mdsInf",
    "rmdir", "rmLnk", "mvDirIns", "mvFiIns", "open", "ren", "sChDrct", "sAttr", "sDirPat", "stat",
    "statfs", "trunc", "symlnk", "unlnk", "lookLI", "statLI", "revalLI", "openLI", "createLI",
    "hardlnk", "flckAp", "flckEn", "flckRg", "dirparent", "listXA", "getXA", "rmXA", "setXA",
    "mirror",
)  # fmt: skip
STORAGE_OPERATIONS = (
    "sum", "ack", "sChDrct", "getFSize", "sAttr", "statfs", "trunc", "close", "fsync", "ops-rd",
    "B-rd", "ops-wr", "B-wr", "gendbg", "hrtbeat", "remNode", "storInf", "unlnk",
)  # fmt: skip

_PAIR = re.compile(r"(\S+)\s+\[([^\]\s]{1,40})\]")
_NUMBER = re.compile(r"[0-9]{1,25}(?:\.[0-9]{1,10})?(?:[eE]\+?[0-9]{1,2})?", re.ASCII)
_BYTE_PAIR = re.compile(r"(|Ki|Mi|Gi|Ti)B-(rd|wr)")
_FACTORS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_ROUNDED = ("rd", "wr")
_SUMS = ("Sum", "Summary")
_LARGEST = 1 << 70

_MMPMON_REQUEST = b"once fs_io_s\n"
_MMPMON_RESPONSE = "_fs_io_s_"
_MMPMON_METRICS = {
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

_ON_DEMAND = "beegfs_ondemand"
_MOST_MOUNTS = 16
_OPERATIONS = {"meta": META_OPERATIONS, "storage": STORAGE_OPERATIONS}
_BYTES = {"B-rd": "read", "B-wr": "write"}


def parse_client_stats(content: bytes, client: str = "") -> dict[str, int]:
    """Return counters by operation, of `client` or summed over all clients if it is empty.

    Byte counters are `B-rd` and `B-wr`; those of `beegfs stats` (`rd`, `wr`) are skipped if rounded
    to a unit. A client without requests has no line; the result is empty. Raise UnparsableError for
    any other output.
    """
    text = content.decode("utf-8", "replace")
    is_any = False
    # The last line of an interrupted program is incomplete.
    for line in text.split("\n")[:-1]:
        stripped = line.strip()
        # beegfs-ctl prints the line `====== 0 s ======` only if it repeats its output.
        is_header = stripped.startswith(("======", "-------"))
        is_any = is_any or is_header or _PAIR.search(stripped) is not None
        name, _, rest = stripped.partition(" ")
        if name.rstrip(":") not in ((client,) if client else _SUMS):
            continue
        counters = _parse_pairs(rest)
        if counters:
            return counters
        raise UnparsableError(f"no pairs of number and operation: {stripped[:80]!r}")
    if not is_any:
        raise UnparsableError(f"no client statistics: {text[:80]!r}")
    return {}


def _parse_pairs(text: str) -> dict[str, int]:
    counters: dict[str, int] = {}
    for number, printed in _PAIR.findall(text):
        operation = f"B-{printed}" if printed in _ROUNDED and number.isdecimal() else printed
        if operation in _ROUNDED or operation.endswith("/s"):
            continue
        if _NUMBER.fullmatch(number) is None:
            raise UnparsableError(f"{operation[:40]}: not a number: {number[:40]!r}")
        exact = int(number) if number.isdecimal() else float(number)
        found = _BYTE_PAIR.fullmatch(operation)
        value = exact * _FACTORS[found[1]] if found else exact
        if not math.isfinite(value) or value > _LARGEST:
            raise UnparsableError(f"{operation[:40]}: out of range: {number[:40]}")
        counters[f"B-{found[2]}" if found else operation] = int(value)
    return counters


class BeegfsSettings(ProgramReaderSettings, frozen=True, kw_only=True):
    """The keys of [agents.metrics.beegfs]."""

    command: Annotated[
        tuple[str, ...],
        Meta(
            description="program, with a prefix such as sudo; its name selects"
            " beegfs-ctl from beegfs; empty: the one that is installed"
        ),
    ] = ()
    mounts: Annotated[
        tuple[str, ...], Meta(description="patterns of mount points; empty: those of BeeOND")
    ] = ()
    client: Annotated[
        str,
        Meta(
            description="address of this node in BeeGFS: only its requests are sent; empty: those"
            " of all clients of the file system"
        ),
    ] = ""

    def __post_init__(self) -> None:
        self.check_command(self.command)


def _beegfs_name(servers: str, operation: str) -> str:
    return f"beegfs_{servers}_{_BYTES.get(operation, operation.replace('-', '_'))}"


def _beegfs_metric(servers: str, operation: str) -> Metric:
    what = f"requests {operation} to {servers} servers"
    if operation == "sum":
        what = f"all requests to {servers} servers"
    elif operation in _BYTES:
        what = f"bytes {'read from' if operation == 'B-rd' else 'written to'} storage servers"
    return Metric(
        unit="B/s" if operation in _BYTES else "1/s",
        type="node",
        description=f"{what}, by mount (stype filesystem)",
        source=f"beegfs-ctl --clientstats --nodetype={servers}, {operation}",
        is_default=False,
    )


class BeegfsReader(ProgramReader[BeegfsSettings]):
    """Requests of clients, by mount. Programs run only if a metric is wanted.

    The servers hold the counters: each run queries all of them and needs root.
    """

    name = "beegfs"
    is_exposed = False
    Settings = BeegfsSettings
    metrics: ClassVar[dict[str, Metric]] = {
        _beegfs_name(servers, operation): _beegfs_metric(servers, operation)
        for servers, operations in _OPERATIONS.items()
        for operation in operations
    }

    def __init__(self, settings: BeegfsSettings | None = None) -> None:
        super().__init__(settings)
        self._before: dict[tuple[str, str], dict[str, int]] = {}

    def targets(self, node: Node) -> list[str]:
        """Return the mount points. Raise NotHereError without a BeeGFS mount."""
        mounts = read_parsed(node, MOUNTINFO, parse_mountinfo)
        points = sorted({mount.point for mount in mounts if self._is_chosen(mount)})
        if not points:
            which = (
                " that agents.metrics.beegfs.mounts names" if self.settings.mounts else " of BeeOND"
            )
            raise NotHereError(f"/{MOUNTINFO}: no BeeGFS mount{which}")
        return points[:_MOST_MOUNTS]

    def runs(self, targets: list[str]) -> int:
        """Return the number of programs of `collect`: one per mount and kind of servers."""
        return len(self._servers()) * len(targets)

    def collect(self, run: RunProgram, targets: list[str]) -> tuple[list[Gauge | Count], list[str]]:
        """Query the servers of each mount. A failing mount costs its own values."""
        values: list[Gauge | Count] = []
        problems: list[str] = []
        for point in targets:
            scope = Scope(stype="filesystem", stype_id=clean_label(point))
            for servers in self._servers():
                try:
                    output = self._run(run, point, servers)
                    counters = parse_client_stats(output, self.settings.client)
                except CcagentError as error:
                    problems.append(f"mount {ascii(point)[:80]}, {servers}: {error}")
                    continue
                if self._has_fallen(point, servers, counters):
                    continue
                values += (
                    Count(_beegfs_name(servers, operation), value, scope)
                    for operation, value in counters.items()
                    if operation in _OPERATIONS[servers]
                )
        return values, problems

    def _has_fallen(self, point: str, servers: str, counters: dict[str, int]) -> bool:
        """Return whether a counter fell, because a server has restarted.

        This round has no values then: deltas of the sum would be wrong.
        """
        before = self._before.get((point, servers), {})
        self._before[point, servers] = counters
        return any(counters.get(operation, 0) < value for operation, value in before.items())

    def _is_chosen(self, mount: Mount) -> bool:
        if not self.settings.mounts:
            return _ON_DEMAND in mount.source
        return mount.type == "beegfs" and any(
            fnmatchcase(mount.point, each) for each in self.settings.mounts
        )

    def _servers(self) -> list[str]:
        """Return the kinds of servers that have wanted metrics."""
        return [
            servers
            for servers, operations in _OPERATIONS.items()
            if self.wanted is None
            or any(_beegfs_name(servers, each) in self.wanted for each in operations)
        ]

    def _run(self, run: RunProgram, point: str, servers: str) -> bytes:
        commands = (
            [self.settings.command] if self.settings.command else [("beegfs-ctl",), ("beegfs",)]
        )
        for command in commands:
            try:
                client = self.settings.client
                return run([*command, *arguments(command[-1], point, servers, client)])
            except NotHereError:
                continue
        names = " or ".join(command[0] for command in commands)
        raise ProgramError(f"no program {names}: install it, or set agents.metrics.beegfs.command")


def arguments(program: str, point: str, servers: str, client: str = "") -> Sequence[str]:
    """Return the arguments for one output of the counters of all clients.

    client: the one whose line is read; empty: the sum.
    """
    if program.rpartition("/")[2] == "beegfs":
        return (
            "stats", "client", f"--node-type={servers}", "--interval=0s", "--all", "--retro",
            "--raw", f"--mount={point}",
        )  # fmt: skip
    # With a limit there is no sum since BeeGFS 7.1; without one BeeGFS 7.0 has no lines of clients.
    lines = 100_000 if client else 0
    return (
        "--clientstats", f"--nodetype={servers}", f"--mount={point}", "--allstats", "--interval=0",
        f"--maxlines={lines}", "--rwunit=B", "--perinterval",
    )  # fmt: skip


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
        if not words or words[0] != _MMPMON_RESPONSE:
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
    for metric, (keyword, _, _) in _MMPMON_METRICS.items():
        word = fields.get(keyword, "")
        if not (word.isascii() and word.isdecimal()) or len(word) > 20:
            raise UnparsableError(f"{keyword}: not a number: {word[:40]!r}")
        numbers[metric] = int(word)
        if numbers[metric] > LARGEST_UINT:
            raise UnparsableError(f"{keyword}: out of range: {word}")
    return numbers


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
        for name, (keyword, unit, description) in _MMPMON_METRICS.items()
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
            output = run(self.settings.command, standard_input=_MMPMON_REQUEST)
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
