"""The clock of a queue: a lower bound of elapsed seconds, independent of the wall clock.

The clock advances with the uptime of the machine, also across restarts of the process. After a
reboot only the time since that boot is added. The clock is therefore never ahead of the true time.
"""

from __future__ import annotations

import time
from typing import NamedTuple

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


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


def resume(last: Moment | None, newest: float, boot: bytes, uptime: float) -> Moment:
    """Return the reading at `uptime` seconds of the boot `boot`, of a clock that was stored.

    last: reading in the newest file, None if damaged; newest: the newest message's seconds.
    """
    if last is None:
        return Moment(newest, boot, uptime)
    return advance(last if last.boot == boot else last._replace(clock=newest), boot, uptime)


def advance(last: Moment, boot: bytes, uptime: float) -> Moment:
    """Return the reading after `last`, at `uptime` seconds of the boot `boot`."""
    begin = last.uptime if boot == last.boot and uptime >= last.uptime else 0.0
    return Moment(last.clock + uptime - begin, boot, uptime)
