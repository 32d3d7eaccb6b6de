"""A clock that lets a day pass in a minute."""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable

from ccagent.machine.clock import Clock

MIDNIGHT = 1_700_006_400.0
"""2023-11-15T00:00:00Z"""


class FastClock(Clock):
    """A clock that runs ahead whenever the daemon only waits."""

    def __init__(self, begin: float) -> None:
        self.now = begin
        self.steady = 5000.0
        self.is_idle: Callable[[], bool] = lambda: True
        self.end: Callable[[], None] = lambda: None
        self.until = begin
        self.jumps: dict[float, float] = {}

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.steady

    def uptime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self.steady - 5000.0

    def sleep(self, seconds: float) -> None:
        del seconds

    def wait(self, seconds: float, descriptor: int) -> None:
        del descriptor
        while not self.is_idle():
            time.sleep(0.0002)
        # Timers are never exact, and often a little late.
        self.now += seconds + 0.003
        self.steady += seconds + 0.003
        for moment in [moment for moment in self.jumps if moment <= self.steady]:
            self.now += self.jumps.pop(moment)
        if self.steady - 5000.0 >= self.until:
            self.end()


def moments(times: list[str]) -> list[float]:
    return [calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ")) for text in times]
