"""Entries of job_stats, and their ids."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

FACTORS = {b"": 1, b"K": 1 << 10, b"M": 1 << 20, b"G": 1 << 30}
"""Multiples in the buckets of histograms."""

BANDWIDTHS = {"lustre_read_bytes": "lustre_read_bw", "lustre_write_bytes": "lustre_write_bw"}
"""Names of rates in B/s, by counter; those of operations in 1/s end with `_rate`."""

NOT_UNDERSTOOD = "can't be parsed"
BREAKS_OFF = "the text breaks off in this entry; entry skipped"
LACKS_TIME = "an entry without snapshot_time; entry skipped"
CONTRADICTS = "an entry has two lines of one operation; entry skipped"
LACKS_ID = "a line of an entry without job id; line skipped"
CUT = "the text breaks off"
ELSEWHERE = "is part of a job id or of a text that was not requested"


class Target(NamedTuple):
    """Start of the text of a target. kind: `mdt`, `obdfilter`, or empty if unknown."""

    name: str
    kind: str


class Problem(NamedTuple):
    """A part of the text that is not used.

    line: line number in the text. text: start of the line, or the id of its entry. hides_entries:
    other entries of the target may be missing in the text although they exist.
    """

    target: str
    line: int
    text: str
    reason: str = NOT_UNDERSTOOD
    hides_entries: bool = False


class OperationStat(NamedTuple):
    """The printed numbers of one operation; None for numbers that are not printed."""

    samples: int
    unit: str
    min: int | None = None
    max: int | None = None
    sum: int | None = None
    sumsq: int | None = None
    hist: str | None = None


class JobstatsEntry(msgspec.Struct, gc=False):
    """The operations of one job id on a target.

    job_id: canonical. snapshot, start: seconds as printed, empty if not printed. since_boot: times
    count from the server's boot (2.15.0 and 2.15.1), else from 1970. lines: name, samples, unit,
    min, max, sum, sumsq and hist of each operation, as printed, in the order of the text.
    Operations without samples are omitted unless requested. is_broken: the text of the entry is
    damaged; its numbers are unusable.
    """

    job_id: str
    snapshot: bytes = b""
    start: bytes = b""
    since_boot: bool = False
    lines: list[tuple[bytes, ...]] = []
    is_broken: bool = False

    @property
    def stats(self) -> dict[str, OperationStat]:
        """The numbers by operation."""
        return {line[0].decode("ascii", "replace"): parse_stat(line) for line in self.lines}


def parse_stat(line: tuple[bytes, ...]) -> OperationStat:
    """Return the numbers of an operation from the words of its line."""
    _, samples, unit, *numbers, hist = line[:8]
    low, high, total, squares = (int(word) if word else None for word in numbers)
    return OperationStat(
        int(samples),
        unit.decode("ascii", "replace"),
        low,
        high,
        total,
        squares,
        hist.decode("ascii", "replace").strip() if hist else None,
    )


_ESCAPE = re.compile(rb"\\x([0-9A-Fa-f]{2})")
_ESCAPED = re.compile(rb'"(?:[A-Za-z0-9.@_:/-]|\\x[0-9A-F]{2})*+"')
_PLAIN = re.compile(rb"[ -\[\]-~]*+")

_PARTS = {
    "e": r"(?P<executable>.+)",
    "h": r"(?P<nodename>[A-Za-z0-9][A-Za-z0-9._-]*)",
    "H": r"(?P<nodename>[A-Za-z0-9][A-Za-z0-9_-]*)",
    "j": r"(?P<job_id>[^\s:]*?)",
    "u": r"(?P<user_id>[0-9]{1,10})",
    "g": r"(?P<group_id>[0-9]{1,10})",
    "p": r"(?P<process_id>[0-9]{1,10})",
}
_NUMBERS = ("user_id", "group_id", "process_id")
_DIGITS = len(str(2**63))
_JOB_ALONE = re.compile(r"[^0-9\\]*[0-9][^\\]*")


def canonical(raw: bytes, *, is_escaped: bool = True) -> str:
    r"""Return the canonical printable text of an id, independent of the server's version.

    is_escaped: the version prints ids with special characters in double quotes, escaped as `\xHH`.
    Other versions print double quotes only if they are part of the id; some vendors' 2.14 quotes
    ids with a colon, too, and may escape. Different ids have different texts: a backslash is
    doubled, and each byte that is unprintable or invalid UTF-8 becomes `\xHH`.
    """
    if len(raw) > 1 and raw[:1] == raw[-1:] == b'"' and (is_escaped or _is_escaped(raw)):
        return unquote(raw[1:-1])
    return _as_text(raw)


def unquote(raw: bytes) -> str:
    """Return the printable text of an id that a server printed between double quotes."""
    if b"\\" in raw:
        # The usual escape is a colon. Replacing it creates no new escape.
        raw = raw.replace(b"\\x3A", b":")
        if b"\\" in raw:
            raw = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), raw)
            return _as_text(raw)
    # Same result as _as_text, in a third of the time.
    if raw.isascii():
        text = raw.decode("ascii")
        if text.isprintable():
            return text
    return _as_text(raw)


def _as_text(raw: bytes) -> str:
    if _PLAIN.fullmatch(raw):
        return raw.decode("ascii")
    return "".join(map(_printable, raw.decode("utf-8", "surrogateescape")))


def _is_escaped(raw: bytes) -> bool:
    return (b"\\x" in raw or b":" in raw) and _ESCAPED.fullmatch(raw) is not None


def _printable(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


class IdFormat:
    """A format such as `%j:%u:%H`: that of a client's `jobid_name`.

    Codes: %e executable, %h host name, %H host name up to the first dot, %j job id, %u user id, %g
    group id, %p process id. Raise ValueError if it is invalid.
    """

    def __init__(self, text: str) -> None:
        pattern: list[str] = []
        used: set[str] = set()
        position = 0
        while position < len(text):
            if text[position] == "%":
                code = text[position + 1 : position + 2]
                part = _PARTS.get(code)
                if part is None:
                    raise ValueError(f"{text!r}: %{code} is none of %e %h %H %j %u %g %p")
                name = part[4 : part.index(">")]
                if name in used:
                    raise ValueError(f"{text!r}: {name} occurs twice")
                used.add(name)
                pattern.append(part)
                position += 2
            else:
                pattern.append(re.escape(text[position]))
                position += 1
        if not used:
            raise ValueError(f"{text!r}: none of %e %h %H %j %u %g %p")
        self.text = text
        self._is_free = text == "%j"
        self._fullmatch = re.compile("".join(pattern)).fullmatch
        self._numbers = [name for name in _NUMBERS if name in used]
        self._has_job = "job_id" in used

    def parse(self, entry_id: str) -> dict[str, str | int] | None:
        """Return the parts of an id by name; None if the id has another format.

        An executable may contain any character, so it matches as much as possible. A numeric job id
        becomes a number, but `0123` stays a text. A job id alone must have a digit and no
        unprintable character; otherwise it is a part of an id of another format.
        """
        match = self._fullmatch(entry_id)
        if match is None or (self._is_free and not _JOB_ALONE.fullmatch(entry_id)):
            return None
        found: dict[str, str | int] = match.groupdict()
        for name in self._numbers:
            found[name] = int(found[name])
        if self._has_job:
            job = str(found["job_id"])
            if not job:
                del found["job_id"]
            elif job[0] in "123456789" and len(job) < _DIGITS and job.isdigit() and job.isascii():
                found["job_id"] = int(job)
        return found
