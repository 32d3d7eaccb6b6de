"""The frame of a pinned iterator's file: a header, records of one size, and an end.

    header  32 bytes: magic (8), layout (4), size of a record (4), time (8), features (8)
    records
    end     32 bytes: a header with the magic `ccended` and separate features
    late    records of processes that started while the end was read; ignored

All numbers are little-endian. Source: struct header in kernel.bpf.h. After the last record read(2)
iterates once more, but the end is written only once: bpf_seq_read() in kernel/bpf/bpf_iter.c.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ccagent.errors import UnparsableError

HEADER = struct.Struct("<8sIIQQ")
END = b"ccended\n"


class Header(NamedTuple):
    """Header of a pinned file.

    time: start of the reading in ns since boot, including suspension (CLOCK_BOOTTIME). features:
    bits; their meaning depends on the file.
    """

    magic: bytes
    layout: int
    size: int
    time: int
    features: int


def parse_frame(content: bytes, magic: bytes, layout: int, size: int) -> Header:
    """Return the header of a file.

    The records are content[HEADER.size : end_of(content, size)]. Raise UnparsableError if the file
    is incomplete or has another layout.
    """
    if len(content) < 2 * HEADER.size:
        raise UnparsableError(f"{len(content)} bytes: less than a header and an end")
    header = Header._make(HEADER.unpack_from(content))
    if header.magic != magic:
        raise UnparsableError(f"begins with {header.magic!r} instead of {magic!r}")
    if (header.layout, header.size) != (layout, size):
        raise UnparsableError(
            f"layout {header.layout} with records of {header.size} bytes "
            f"instead of {layout} with {size}"
        )
    if end_of(content, size) < 0:
        raise UnparsableError(f"{len(content)} bytes: cut off")
    return header


def end_of(content: bytes, size: int) -> int:
    """Return the position of the end, negative if it is missing.

    No record starts with the same bytes: as a pid or cgroup id they would be out of range.
    """
    at = len(content) - HEADER.size
    while at >= HEADER.size and not content.startswith(END, at):
        at -= size
    return -1 if at < HEADER.size or (at - HEADER.size) % size else at
