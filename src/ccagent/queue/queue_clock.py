"""The clock of a queue: seconds that have certainly passed, independent of the wall clock.

It advances with the uptime of the machine, over restarts of the process. Of the time between two
processes on different boots only the time since the last boot counts, so the clock is never ahead
of the true time.
"""

from __future__ import annotations

import struct
import time
import zlib
from typing import NamedTuple

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_STORED = struct.Struct("<dd36sI")


class Moment(NamedTuple):
    """A reading of the queue's clock in seconds, with the boot and uptime in seconds then."""

    clock: float
    boot: bytes
    uptime: float


def read_boot_id() -> bytes:
    """Return the id of this boot; empty where the kernel has none."""
    try:
        with open(_BOOT_ID, "rb") as file:
            return file.read(64).strip()[:36]
    except OSError:
        return b""


def read_uptime() -> float:
    """Return the seconds since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def advance(last: Moment, boot: bytes, uptime: float) -> Moment:
    """Return the reading at `uptime` of `boot`, which follows `last`."""
    begin = last.uptime if boot == last.boot and uptime >= last.uptime else 0.0
    return Moment(last.clock + uptime - begin, boot, uptime)


def encode_moment(moment: Moment) -> bytes:
    """Return the stored form of a reading, with a checksum."""
    content = _STORED.pack(moment.clock, moment.uptime, moment.boot, 0)[:-4]
    return content + struct.pack("<I", zlib.crc32(content))


def decode_moment(stored: object) -> Moment | None:
    """Return the reading in a column, None for a damaged one."""
    if not isinstance(stored, bytes) or len(stored) != _STORED.size:
        return None
    clock, uptime, boot, checksum = _STORED.unpack(stored)
    if zlib.crc32(stored[:-4]) != checksum:
        return None
    return Moment(clock, boot.rstrip(b"\0"), uptime)
