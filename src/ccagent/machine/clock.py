"""The wall clock, the monotonic clock, and waiting."""

from __future__ import annotations

import time


class Clock:
    """The machine's clocks. Tests replace this class to simulate a day in a minute."""

    def time(self) -> float:
        """Return seconds since 1970, UTC. The clock may jump."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds of the monotonic clock, for intervals."""
        return time.monotonic()

    def uptime(self) -> float:
        """Return seconds since boot, including suspended time, like start times in /proc."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def boot_id(self) -> bytes:
        """Return the kernel's id of this boot; empty if it has none."""
        try:
            with open("/proc/sys/kernel/random/boot_id", "rb") as file:
                return file.read(64).strip()[:36]
        except OSError:
            return b""

    def sleep(self, seconds: float) -> None:
        """Pause the calling thread."""
        time.sleep(seconds)

    def wait(self, seconds: float, descriptor: int) -> None:
        """Pause until `descriptor` is readable, at most `seconds`."""
        import select

        # poll, not select: a process source may have thousands of descriptors.
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(max(0.0, seconds) * 1000)


def timestamp(seconds: float) -> str:
    """Return `seconds` since 1970 as local time with its UTC offset at that time.

    The format is the Timestamp of the envelopes: `2026-01-31T12:00:00+01:00`, `Z` for UTC.
    """
    moment = time.localtime(int(seconds))
    offset = moment.tm_gmtoff // 60
    text = (
        f"{moment.tm_year:04d}-{moment.tm_mon:02d}-{moment.tm_mday:02d}"
        f"T{moment.tm_hour:02d}:{moment.tm_min:02d}:{moment.tm_sec:02d}"
    )
    if offset == 0:
        return text + "Z"
    sign = "-" if offset < 0 else "+"
    hours, minutes = divmod(abs(offset), 60)
    return f"{text}{sign}{hours:02d}:{minutes:02d}"
