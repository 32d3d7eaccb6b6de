"""Parser for `brw_stats`: histograms of the disk I/O of a target.

Source: brw_stats_show() of Lustre's osd-ldiskfs and osd-zfs. Each histogram has a title, and lines
with a bucket and the counts and shares of reads and writes:

                               read | write
    disk I/O size ios % cum % | ios % cum %
    512K: 678 0 73 | 493 0 40
    1M: 55068723 26 100 | 44979089 59 100

The kernel prints a histogram up to its last used bucket. An empty histogram has no buckets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccagent.agents.lustre.parameters import show_text
from ccagent.agents.lustre.statistics.metric import (
    Measurement,
    MetricGroup,
    Quantity,
    TargetScope,
    number,
    target,
)
from ccagent.errors import UnparsableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.agents.lustre.statistics.metric import Complain

_TITLES = {
    b"pages per bulk r/w": ("pages_per_bulk", "RPCs", "of up to BUCKET pages"),
    b"discontiguous pages": ("discontiguous_pages", "RPCs", "with BUCKET gaps between pages"),
    b"discontiguous blocks": ("discontiguous_blocks", "RPCs", "with BUCKET gaps between blocks"),
    b"disk fragmented I/Os": ("fragments", "I/Os", "with BUCKET disk I/Os"),
    b"disk I/Os in flight": ("in_flight", "I/Os", "started while BUCKET were in flight"),
    b"I/O time (1/1000s)": ("io_time_ms", "I/Os", "that took up to BUCKET ms"),
    b"disk I/O size": ("io_size", "I/Os", "of up to BUCKET bytes"),
    b"block maps msec": ("block_maps_ms", "maps", "of blocks that took up to BUCKET ms"),
}
_WIDEST = max(map(len, _TITLES))
_BUCKET = re.compile(rb"([0-9]{1,10})([KMG]?):")
_FACTORS = {b"": 1, b"K": 1 << 10, b"M": 1 << 20, b"G": 1 << 30}
_TIMES = (b"snapshot_time:", b"start_time:", b"elapsed_time:")

METRICS = {
    f"lustre_brw_{name}_{way}_BUCKET": Quantity(unit, f"{way}s {description}")
    for name, unit, description in _TITLES.values()
    for way in ("read", "write")
}


def read_brw_stats(
    place: str, _leaf: str, value: bytes, complain: Complain
) -> Iterator[Measurement]:
    """Yield the counts of all buckets; report and skip an unparsable line.

    Lines below an unknown title are skipped. Buckets are plain numbers (1M is 1048576), because
    versions differ in their use of multiples.
    """
    where, _ = target(place)
    name = ""
    for line in value.split(b"\n"):
        words = line.split(None, 8)
        if not words or words[0] in _TIMES or words[0] == b"read":
            continue
        if words[0][-1:] != b":" or not words[0][:1].isdigit():
            name = _title(line)
            if not name:
                complain(f"{show_text(line)} is no known title")
        elif name:
            try:
                yield from _bucket(name, words, where)
            except UnparsableError as error:
                complain(f"{error}, in {show_text(line)}")


def _title(line: bytes) -> str:
    """Return the name of the histogram of a title line; empty for another line."""
    known = _TITLES.get(line[: _WIDEST + 1].partition(b"  ")[0].rstrip())
    return known[0] if known else ""


def _bucket(name: str, words: list[bytes], place: TargetScope) -> Iterator[Measurement]:
    found = _BUCKET.fullmatch(words[0])
    if found is None or len(words) < 6 or words[4] != b"|":
        raise UnparsableError("no bucket with reads and writes")
    bucket = int(found[1]) * _FACTORS[found[2]]
    for way, count in (("read", words[1]), ("write", words[5])):
        entry = f"lustre_brw_{name}_{way}_"
        yield Measurement(f"{entry}BUCKET", f"{entry}{bucket}", number(count), place)


GROUPS = {
    "brw-stats": MetricGroup(
        re.compile(r"(?:osd-\w+|obdfilter)\.(?P<place>[^.]+)\.(?P<leaf>brw_stats)", re.ASCII),
        read_brw_stats,
        ("osd-*.*.brw_stats",),
    )
}
