"""Simulated Lustre targets: their job_stats grow, are reset, and print as each version does.

Beside the live entries a target keeps the true totals, which nothing resets. The formats are those
of lprocfs_jobstats.c, mdt_lproc.c and lproc_ofd.c in Lustre's sources.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["obdfilter", "mdt"]

_PROGRAMS = ("rsync", "cp", "python3.11", "Web Content", "kworker/0:1")

ID_BYTES = 31
"""The longest job id; a server cuts longer ones off."""

BYTES = ("read_bytes", "write_bytes")
"""The operations that count bytes; others count microseconds, or only that they happened."""

_OST_2_8 = [
    "read_bytes", "write_bytes", "getattr", "setattr", "punch", "sync", "destroy", "create",
    "statfs", "get_info", "set_info", "quotactl",
]  # fmt: skip
_OST_2_14 = [*BYTES, "read", "write", *_OST_2_8[2:], "prealloc"]
_MDT_2_5 = [
    "open", "close", "mknod", "link", "unlink", "mkdir", "rmdir", "rename", "getattr", "setattr",
    "getxattr", "setxattr", "statfs", "sync", "samedir_rename", "crossdir_rename",
]  # fmt: skip
_MDT_2_12 = [*_MDT_2_5, *BYTES, "punch"]
_PARALLEL = ["parallel_rename_file", "parallel_rename_dir"]
_MDT_DATA = [*BYTES, "read", "write", "punch", "migrate", "fallocate"]
_MDT_2_15 = [*_MDT_2_5[:-1], *_PARALLEL, "crossdir_rename", *_MDT_DATA]
_MDT_2_17 = [*_MDT_2_5[:-1], *_PARALLEL, "crossdir_rename", "rename_trylocks", *_MDT_DATA]

NANOSECONDS = 10**9
_WRAP = 2**64


class Layout(NamedTuple):
    """How a version prints.

    ids: as they are, with `?` for what isn't printable, or quoted and escaped but for the
    characters in `plain`.
    times: whole seconds; seconds since boot in the first column; or with nanoseconds.
    latencies: operations have microseconds, and sums of squares.
    wide: a space follows `min:`, `max:` and `sum:`.
    """

    obdfilter: list[str]
    mdt: list[str]
    ids: Literal["raw", "?", "escaped"]
    times: Literal["whole", "boot", "nanoseconds"]
    latencies: bool
    wide: bool
    hist: bool = False
    plain: bytes = b""
    bare_when_empty: bool = False


LAYOUTS = {
    "2.5": Layout(
        ["read", "write", "setattr", "punch", "sync"], _MDT_2_5, "raw", "whole", False, False
    ),
    "2.8": Layout(_OST_2_8, _MDT_2_5, "?", "whole", False, False),
    "2.12": Layout(_OST_2_8, _MDT_2_12, "?", "whole", False, False),
    "2.14": Layout(_OST_2_14, _MDT_2_12, "?", "whole", True, False),
    "2.15.0": Layout(_OST_2_14, _MDT_2_15, "?", "boot", True, True),
    "2.15.2": Layout(
        _OST_2_14, _MDT_2_15, "escaped", "nanoseconds", True, True, plain=b".@-_"
    ),
    "2.16": Layout(
        _OST_2_14, _MDT_2_15, "escaped", "nanoseconds", True, True, hist=True, plain=b".@-_:/"
    ),
    "2.17": Layout(
        _OST_2_14, _MDT_2_17, "escaped", "nanoseconds", True, True,
        hist=True, plain=b".@-_:/", bare_when_empty=True,
    ),
}  # fmt: skip


@dataclass
class Counter:
    """The live numbers of one operation; hist counts samples of at most 2**key."""

    samples: int = 0
    min: int = 0
    max: int = 0
    sum: int = 0
    sumsq: int = 0
    hist: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, count: int, size: int) -> None:
        """Count `count` samples of the same size."""
        self.min = min(self.min, size) if self.samples else size
        self.max = max(self.max, size)
        self.samples += count
        self.sum += count * size
        self.sumsq += count * size * size
        bucket = max(0, size - 1).bit_length()
        self.hist[bucket] = self.hist.get(bucket, 0) + count


@dataclass
class LiveEntry:
    """What the server holds of one job id; times in nanoseconds since 1970."""

    start: int
    snapshot: int
    counters: dict[str, Counter] = field(default_factory=dict[str, Counter])


@dataclass
class Total:
    """What was really done."""

    samples: int = 0
    sum: int = 0


class SimulatedTarget:
    """One target of a server. All times are seconds since 1970.

    `boot_time`: of the server, for the layout that tells the time since then.
    `truth[entry_id][operation]` is what was done since the beginning, whatever was reset.
    """

    def __init__(self, name: str, kind: Kind, *, boot_time: float = 0.0) -> None:
        self.name = name
        self.kind: Kind = kind
        self.boot_time = boot_time
        self.entries: dict[str, LiveEntry] = {}
        self.truth: dict[str, dict[str, Total]] = {}

    def do(self, entry_id: str, operation: str, count: int, size: int = 0, *, now: float) -> None:
        """Do an operation `count` times with `size` bytes, or in `size` microseconds, each.

        Operations have the names of the newest version.
        """
        if not 0 < len(_bytes_of(entry_id)) <= ID_BYTES:
            raise ValueError(f"{entry_id!r} is no job id of 1 to {ID_BYTES} bytes")
        if operation not in _operations(LAYOUTS["2.17"], self.kind):
            raise ValueError(f"{self.kind} counts no {operation}")
        if count < 1 or size < 0:
            raise ValueError(f"{count} times {size}")
        moment = round(now * NANOSECONDS)
        entry = self.entries.setdefault(entry_id, LiveEntry(start=moment, snapshot=moment))
        entry.snapshot = moment
        entry.counters.setdefault(operation, Counter()).add(count, size)
        total = self.truth.setdefault(entry_id, {}).setdefault(operation, Total())
        total.samples += count
        total.sum += count * size

    def cleanup(self, now: float, interval: float = 600) -> None:
        """Drop what was not used for longer than the interval; with 0, nothing."""
        oldest = round((now - interval) * NANOSECONDS)
        for entry_id, entry in list(self.entries.items()):
            if interval and entry.snapshot < oldest:
                del self.entries[entry_id]

    def reset(self, entry_id: str) -> None:
        """Drop one entry, as when its id is written to job_stats."""
        self.entries.pop(entry_id, None)

    def clear(self) -> None:
        """Drop all entries, as when `clear` is written to job_stats."""
        self.entries.clear()

    def failover(self, boot_time: float | None = None) -> None:
        """Go on without entries on another server, which was booted at another time."""
        self.entries.clear()
        if boot_time is not None:
            self.boot_time = boot_time

    def text(self, layout: str, now: float) -> bytes:
        """Print the file job_stats."""
        form = LAYOUTS[layout]
        if not self.entries:
            return b"" if form.bare_when_empty else b"job_stats:\n"
        boot = round(self.boot_time * NANOSECONDS)
        printed = [b"job_stats:\n"]
        for entry_id, entry in self.entries.items():
            if entry.snapshot > round(now * NANOSECONDS):
                raise ValueError(f"{entry_id} was used later than now")
            printed.append(_entry_text(form, self.kind, entry_id, entry, boot))
        return b"".join(printed)

    def parameter(self, layout: str, now: float) -> bytes:
        """Print what `lctl get_param` does: a value of several lines begins on the next one."""
        text = self.text(layout, now)
        newline = b"\n" if text.count(b"\n") != 1 else b""
        return f"{self.kind}.{self.name}.job_stats=".encode() + newline + text


def large_text(
    entries: int,
    *,
    nonzero: float,
    seed: int,
    layout: str = "2.14",
    target: str = "scratch-OST0000",
) -> Iterator[bytes]:
    """Print an OST with many entries as `lctl get_param` does, a hundred entries at a time.

    `nonzero`: the part of all operations that is not zero, spread evenly over the entries.
    """
    chance = random.Random(seed)
    form = LAYOUTS[layout]
    zero, nothing = Counter(), LiveEntry(start=0, snapshot=0)
    zeros = {name: _stat_line(form, "obdfilter", name, zero) for name in form.obdfilter}
    operations = len(form.obdfilter)
    yield f"obdfilter.{target}.job_stats=\njob_stats:\n".encode()
    chunk: list[bytes] = []
    for number in range(entries):
        snapshot = 1_669_010_520 * NANOSECONDS + chance.randrange(600 * NANOSECONDS)
        nothing.snapshot, nothing.start = snapshot, snapshot - chance.randrange(86400 * NANOSECONDS)
        chunk.append(_entry_head(form, _large_id(number), nothing, 0))
        used = int((number + 1) * operations * nonzero) - int(number * operations * nonzero)
        lines = dict(zeros)
        for name in chance.sample(form.obdfilter, used):
            lines[name] = _stat_line(form, "obdfilter", name, _chosen(name, chance))
        chunk.append("".join(lines.values()).encode())
        if number % 100 == 99 or number == entries - 1:
            yield b"".join(chunk)
            chunk.clear()


def _large_id(number: int) -> str:
    """Most are jobs on compute nodes, some programs on login nodes."""
    if number % 10 == 9:
        user, program = divmod(number // 10, len(_PROGRAMS))
        return f"{_PROGRAMS[program]}.{17_000_000 + user}"
    return f"{11_000_000 + number}:{17_000_000 + number % 997}:r{number % 40:02}c{number % 96:02}"


def _chosen(operation: str, chance: random.Random) -> Counter:
    least, most = sorted(chance.choices(range(1, 4_194_305 if operation in BYTES else 60_000), k=2))
    samples = chance.randrange(2, 5000)
    mean = (least + most) // 2
    hist = {(mean - 1).bit_length(): samples}
    return Counter(samples, least, most, samples * mean, samples * mean * mean, hist)


def _operations(form: Layout, kind: Kind) -> list[str]:
    return form.obdfilter if kind == "obdfilter" else form.mdt


def _entry_text(form: Layout, kind: Kind, entry_id: str, entry: LiveEntry, boot: int) -> bytes:
    zero = Counter()
    lines: list[str] = []
    for operation in _operations(form, kind):
        # 2.5 called `read` on an OST what was `read_bytes` afterwards.
        counted = f"{operation}_bytes" if _means_bytes(form, kind, operation) else operation
        counter = entry.counters.get(counted, zero)
        lines.append(_stat_line(form, kind, operation, counter))
    return _entry_head(form, entry_id, entry, boot) + "".join(lines).encode()


def _means_bytes(form: Layout, kind: Kind, operation: str) -> bool:
    return kind == "obdfilter" and not form.latencies and operation in {"read", "write"}


def _entry_head(form: Layout, entry_id: str, entry: LiveEntry, boot: int) -> bytes:
    if form.times == "whole":
        times = f"  snapshot_time:   {entry.snapshot // NANOSECONDS}\n"
    else:
        since = boot if form.times == "boot" else 0
        values = {
            "snapshot_time": entry.snapshot - since,
            "start_time": entry.start - since,
            "elapsed_time": entry.snapshot - entry.start,
        }
        times = "".join(_time_line(form, name, value) for name, value in values.items())
    return b"- job_id:          " + _printed_id(form, entry_id) + b"\n" + times.encode()


def _time_line(form: Layout, name: str, value: int) -> str:
    label = f"{name:16}: " if form.times == "boot" else f"  {name + ':':16} "
    return f"{label}{value // NANOSECONDS}.{value % NANOSECONDS:09} secs.nsecs\n"


def _stat_line(form: Layout, kind: Kind, operation: str, counter: Counter) -> str:
    in_bytes = operation in BYTES or _means_bytes(form, kind, operation)
    unit = "bytes" if in_bytes else "usecs" if form.latencies else "reqs"
    if kind == "mdt" and not form.latencies:
        unit = "reqs"
    line = f"  {operation + ':':16} {{ samples: {counter.samples:11}, unit: {unit:>5}"
    if in_bytes or form.latencies:
        gap = " " if form.wide else ""
        line += f", min:{gap}{counter.min:8}, max:{gap}{counter.max:8}, sum:{gap}{counter.sum:16}"
    if form.latencies:
        line += f", sumsq: {counter.sumsq % _WRAP:18}"
    if form.hist and in_bytes:
        buckets = ", ".join(f"{_power(two)}: {counter.hist[two]}" for two in sorted(counter.hist))
        line += f", hist: {{ {buckets} }}"
    return line + " }\n"


def _power(exponent: int) -> str:
    thousands = min(exponent // 10, 3)
    return f"{2 ** (exponent - 10 * thousands)}{['', 'K', 'M', 'G'][thousands]}"


def _printed_id(form: Layout, entry_id: str) -> bytes:
    raw = _bytes_of(entry_id)
    if form.ids == "raw":
        return raw
    if form.ids == "?":
        return bytes(byte if _printable(byte) else ord("?") for byte in raw)
    plain = [_alphanumeric(byte) or byte in form.plain for byte in raw]
    # From 2.16 on, colons and an @ at the beginning stay as they are, but need quotes.
    bare = all(plain) and not (b":" in form.plain and (b":" in raw or raw.startswith(b"@")))
    if bare:
        return raw
    escaped = b"".join(
        bytes([byte]) if keep else b"\\x%02X" % byte for byte, keep in zip(raw, plain, strict=True)
    )
    return b'"' + escaped + b'"'


def _bytes_of(entry_id: str) -> bytes:
    return entry_id.encode("utf-8", "surrogateescape")


def _alphanumeric(byte: int) -> bool:
    """Return whether the kernel's isalnum() is true, which knows Latin-1."""
    return chr(byte).isalnum() if byte < 0x80 else byte >= 0xC0 and byte not in {0xD7, 0xF7}


def _printable(byte: int) -> bool:
    """Return whether the kernel's isprint() is true."""
    return 0x20 <= byte < 0x7F or byte >= 0xA0
