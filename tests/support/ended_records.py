"""Records of the pinned iterator `ended` with all their fields, as the kernel writes them."""

from __future__ import annotations

from typing import NamedTuple

from ccagent.machine.bpf.pinned_file import HEADER, Header, end_of
from ccagent.machine.bpf.process_records import ENDED_RECORD, EndedKey, Total, parse_key, parse_raw


class Ended(NamedTuple):
    """Sums of an entry over all threads, without children: ns on a CPU, bytes.

    Pages are the maximum over the processes. since, last: creation and last change of the entry in
    ns since boot.
    """

    processes: int
    runtime: int
    rchar: int
    wchar: int
    read_bytes: int
    write_bytes: int
    cancelled_write_bytes: int
    max_pages: int
    since: int
    last: int


class EndedReading(NamedTuple):
    """One reading, fully parsed. unseen: as in RawEndedReading."""

    header: Header
    entries: dict[EndedKey, Ended]
    total: Total
    unseen: int


def parse_ended(content: bytes) -> EndedReading:
    """Parse a reading. Raise UnparsableError as `parse_raw` does."""
    raw = parse_raw(content)
    size = ENDED_RECORD.size
    last = end_of(content, size) - size
    records = [content[at : at + size] for at in range(HEADER.size, last, size)]
    entries = {parse_key(each[:48]): Ended._make(ENDED_RECORD.unpack(each)[7:]) for each in records}
    return EndedReading(raw.header, entries, raw.total, raw.unseen)
