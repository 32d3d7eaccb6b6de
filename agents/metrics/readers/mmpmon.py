"""Parser for `fs_io_s` of mmpmon -p: I/O of each mounted GPFS file system.

Source: IBM Storage Scale, "Display I/O statistics per mounted file system".
"""

from __future__ import annotations

from typing import NamedTuple

from ccagent.errors import UnparsableError
from ccagent.records.envelopes import LARGEST_UINT

_RESPONSE = "_fs_io_s_"
_FIELDS = {
    "_br_": "bytes_read",
    "_bw_": "bytes_written",
    "_oc_": "opens",
    "_cc_": "closes",
    "_rdc_": "reads",
    "_wc_": "writes",
    "_dir_": "readdirs",
    "_iu_": "inode_updates",
}


class GpfsCounters(NamedTuple):
    """Counters of this node in a file system since the mount."""

    bytes_read: int
    bytes_written: int
    opens: int
    closes: int
    reads: int
    writes: int
    readdirs: int
    inode_updates: int


def parse_fs_io_s(content: bytes) -> tuple[dict[str, GpfsCounters], list[str]]:
    """Return the counters by file system, and a message for each unusable line.

    If two clusters have file systems of equal name, the names are `NAME@CLUSTER`. Raise
    UnparsableError if no line has a file system.
    """
    found: dict[tuple[str, str], GpfsCounters] = {}
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


def _parse_counters(name: str, fields: dict[str, str]) -> GpfsCounters:
    if not name:
        raise UnparsableError("_fs_: no name")
    if fields.get("_rc_") != "0":
        raise UnparsableError(f"status {fields.get('_rc_', 'missing')[:20]}")
    numbers: dict[str, int] = {}
    for keyword, field in _FIELDS.items():
        word = fields.get(keyword, "")
        if not (word.isascii() and word.isdecimal()) or len(word) > 20:
            raise UnparsableError(f"{keyword}: not a number: {word[:40]!r}")
        numbers[field] = int(word)
        if numbers[field] > LARGEST_UINT:
            raise UnparsableError(f"{keyword}: out of range: {word}")
    return GpfsCounters(**numbers)
