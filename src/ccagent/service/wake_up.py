"""A pipe with which a signal handler or another thread wakes a waiting thread."""

from __future__ import annotations

import contextlib
import os


class WakeUp:
    """Makes `descriptor` readable. After `close` every method does nothing."""

    def __init__(self) -> None:
        self.descriptor, self.writer = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self.writer, False)
        self._is_open = True

    def set(self) -> None:
        """Make the descriptor readable. A signal handler may call this at any time."""
        # A full pipe is already readable.
        if self._is_open:
            with contextlib.suppress(OSError):
                os.write(self.writer, b"x")

    def clear(self) -> None:
        """Make the descriptor unreadable until the next `set`."""
        with contextlib.suppress(OSError):
            while os.read(self.descriptor, 512):
                pass

    def close(self) -> None:
        """Close the pipe."""
        if self._is_open:
            self._is_open = False
            os.close(self.descriptor)
            os.close(self.writer)
