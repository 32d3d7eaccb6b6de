"""A plain parser of Lustre's job_stats, for comparison: one line at a time, nothing clever.

It reads what `lctl get_param` prints of any version, with other parameters around, and job_stats
files. A line that it can't read costs itself. `lctl get_param -H` is not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_HEX = "0123456789abcdefABCDEF"
_TIMES = ("snapshot_time", "start_time", "elapsed_time")


@dataclass
class ReferenceStat:
    """One operation. What is not printed is None; hist is the text between its braces."""

    samples: int
    unit: str
    min: int | None = None
    max: int | None = None
    sum: int | None = None
    sumsq: int | None = None
    hist: str | None = None


@dataclass
class ReferenceEntry:
    """One entry; times are the digits as printed, empty where they are not."""

    target: str
    job_id: str
    snapshot_time: str = ""
    start_time: str = ""
    elapsed_time: str = ""
    stats: dict[str, ReferenceStat] = field(default_factory=dict[str, ReferenceStat])


class _Reader:
    """What is known when a line comes."""

    def __init__(self) -> None:
        self.entries: list[ReferenceEntry] = []
        self.entry: ReferenceEntry | None = None
        """The one whose lines come now."""
        self.target = ""
        self.unnamed = 0
        """How many targets without a name there were."""
        self.named_only = False
        """The target's name was there, its line `job_stats:` not yet."""
        self.elsewhere = False
        """The lines are those of another parameter."""

    def line(self, line: str) -> None:
        if line.startswith("- job_id:"):
            self.job_id(line)
        elif line == "job_stats:":
            self.header_alone()
        elif _is_parameter(line):
            self.parameter(line)
        elif _is_time(line):
            self.time(line)
        elif _is_stat(line):
            self.stat(line)

    def parameter(self, line: str) -> None:
        name, _, value = line.partition("=")
        kind, _, rest = name.partition(".")
        self.entry = None
        if kind in {"mdt", "obdfilter"} and rest.endswith(".job_stats"):
            self.target = rest.removesuffix(".job_stats")
            self.named_only = value == ""
            self.elsewhere = False
        else:
            self.target = ""
            self.named_only = False
            self.elsewhere = True

    def header_alone(self) -> None:
        self.entry = None
        self.elsewhere = False
        if self.named_only:
            self.named_only = False
        else:
            self.next_unnamed()

    def next_unnamed(self) -> None:
        self.unnamed += 1
        self.target = f"unnamed-{self.unnamed}"

    def job_id(self, line: str) -> None:
        if self.elsewhere:
            return
        if self.target == "":
            self.next_unnamed()
        self.entry = ReferenceEntry(self.target, _job_id(line.removeprefix("- job_id:")))
        self.entries.append(self.entry)

    def time(self, line: str) -> None:
        name, _, value = line.partition(":")
        digits = value.removesuffix("secs.nsecs").strip()
        if self.entry is None or not digits.replace(".", "", 1).isdecimal():
            return
        # With `lctl get_param -n` the brw_stats that follow may have a snapshot_time, too.
        if name.strip() == "snapshot_time" and not self.entry.snapshot_time:
            self.entry.snapshot_time = digits
        elif name.strip() == "start_time" and not self.entry.start_time:
            self.entry.start_time = digits
        elif name.strip() == "elapsed_time" and not self.entry.elapsed_time:
            self.entry.elapsed_time = digits

    def stat(self, line: str) -> None:
        if self.entry is None:
            return
        name, _, braced = line.partition(":")
        stat = _stat(braced.strip())
        if stat is not None:
            self.entry.stats[name.strip()] = stat


def parse(text: bytes) -> list[ReferenceEntry]:
    """Return all entries in the order in which they are printed."""
    reader = _Reader()
    for line in text.split(b"\n"):
        # In Latin-1 each character is one byte, and only 0 to 9 are decimal.
        reader.line(line.decode("latin-1"))
    return reader.entries


def canonical(raw: bytes) -> str:
    r"""Make a job id printable, so that no two become one.

    Backslashes are doubled; bytes that are no UTF-8, and those of unprintable characters, become
    `\xHH` in lower case.
    """
    result = ""
    # Python decodes a byte 0xNN that is no UTF-8 to the lone surrogate U+DCNN.
    for character in raw.decode("utf-8", "surrogateescape"):
        if character == "\\":
            result += "\\\\"
        elif character.isprintable():
            result += character
        else:
            for byte in character.encode("utf-8", "surrogateescape"):
                result += f"\\x{byte:02x}"
    return result


def _is_parameter(line: str) -> bool:
    """`name=`, with or without a value, in the first column."""
    return not line.startswith((" ", "-")) and "=" in line


def _is_time(line: str) -> bool:
    return line.partition(":")[0].strip() in _TIMES


def _is_stat(line: str) -> bool:
    """`name: {`."""
    return line.partition(":")[2].strip().startswith("{")


def _job_id(text: str) -> str:
    text = text[10:] if text.startswith(" " * 10) else text.lstrip(" ")
    if len(text) >= 2 and text.startswith('"') and text.endswith('"'):
        text = _unescaped(text[1:-1])
    return canonical(text.encode("latin-1"))


def _unescaped(text: str) -> str:
    result = ""
    while text:
        if len(text) >= 4 and text.startswith("\\x") and text[2] in _HEX and text[3] in _HEX:
            result += chr(int(text[2:4], 16))
            text = text[4:]
        else:
            result += text[0]
            text = text[1:]
    return result


def _stat(braced: str) -> ReferenceStat | None:
    """Read `{ samples: 3, unit: bytes, min: 1, max: 2, sum: 4, sumsq: 6, hist: { 1: 3 } }`."""
    if not (braced.startswith("{") and braced.endswith("}")):
        return None
    numbers, has_hist, hist = braced[1:-1].partition("hist:")
    unit = ""
    values: dict[str, int] = {}
    for pair in numbers.split(","):
        key, _, value = pair.partition(":")
        key, value = key.strip(), value.strip()
        if key == "unit":
            unit = value
        elif key in {"samples", "min", "max", "sum", "sumsq"}:
            if not value.isdecimal():
                return None
            values[key] = int(value)
    if "samples" not in values or unit == "":
        return None
    return ReferenceStat(
        samples=values["samples"],
        unit=unit,
        min=values.get("min"),
        max=values.get("max"),
        sum=values.get("sum"),
        sumsq=values.get("sumsq"),
        hist=hist.strip().strip("{}").strip() if has_hist else None,
    )
