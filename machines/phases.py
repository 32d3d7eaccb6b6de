"""Measured phases of the work on a machine."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


class Phases:
    """Seconds of each phase, by the tags of existing programs: `overall`, `migrate`..."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self.durations: dict[str, float] = {}

    @contextlib.contextmanager
    def measure(self, tag: str) -> Generator[None]:
        """Add the time of the body to a phase."""
        begun = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - begun
            self.durations[tag] = self.durations.get(tag, 0.0) + seconds

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    def finish(self) -> dict[str, float]:
        """Return all phases with `overall`."""
        return {"overall": self.elapsed} | self.durations
