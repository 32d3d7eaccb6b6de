"""The frame of what a pinned iterator gives: a header, records of one size, and an end.

    header  32 bytes: magic (8), layout (4), size of a record (4), time (8), features (8)
    records
    end     32 bytes: a header with the magic `ccended`

All numbers are little-endian. Source: struct header in kernel.bpf.h.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ccagent.errors import UnparsableError

HEADER = struct.Struct("<8sIIQQ")
END = b"ccended\n"


class Header(NamedTuple):
    """What a pinned file begins with.

    time: ns since boot, suspension included (CLOCK_BOOTTIME), when the reading began.
    features: bits whose meaning is the file's.
    """

    magic: bytes
    layout: int
    size: int
    time: int
    features: int


def parse_frame(content: bytes, magic: bytes, layout: int, size: int) -> Header:
    """Check that a file is complete and has the expected layout.

    Its records lie in content[HEADER.size : -HEADER.size]. Raises UnparsableError.
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
    end = Header._make(HEADER.unpack_from(content, len(content) - HEADER.size))
    if end.magic != END or (len(content) - 2 * HEADER.size) % size:
        raise UnparsableError(f"{len(content)} bytes: cut off")
    return header
