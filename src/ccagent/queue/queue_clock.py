"""The clock of a queue: a lower bound of elapsed seconds, independent of the wall clock.

The clock advances with the uptime of the machine, also across restarts of the process. After a
reboot only the time since that boot is added. The clock is therefore never ahead of the true time.
"""

from __future__ import annotations

import struct
import time
import zlib
from typing import NamedTuple

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_STORED = struct.Struct("<dd36sI")


class Moment(NamedTuple):
    """A reading of the queue's clock in seconds, with boot id and uptime in seconds."""

    clock: float
    boot: bytes
    uptime: float


def read_boot_id() -> bytes:
    """Return the kernel's boot id; empty if it has none."""
    try:
        with open(_BOOT_ID, "rb") as file:
            return file.read(64).strip()[:36]
    except OSError:
        return b""


def read_uptime() -> float:
    """Return the seconds since boot, including suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def advance(last: Moment, boot: bytes, uptime: float) -> Moment:
    """Return the reading after `last`, at `uptime` seconds of the boot `boot`."""
    begin = last.uptime if boot == last.boot and uptime >= last.uptime else 0.0
    return Moment(last.clock + uptime - begin, boot, uptime)


def encode_moment(moment: Moment) -> bytes:
    """Return the stored form of a reading, with a checksum."""
    content = _STORED.pack(moment.clock, moment.uptime, moment.boot, 0)[:-4]
    return content + struct.pack("<I", zlib.crc32(content))


def decode_moment(stored: object) -> Moment | None:
    """Return the reading in a column; None if it is damaged."""
    if not isinstance(stored, bytes) or len(stored) != _STORED.size:
        return None
    clock, uptime, boot, checksum = _STORED.unpack(stored)
    if zlib.crc32(stored[:-4]) != checksum:
        return None
    return Moment(clock, boot.rstrip(b"\0"), uptime)
