"""Errors of a process source: sent with each sample, or logged once."""

from __future__ import annotations

from ccagent.log import logger


class Complaints:
    """Collects errors; `errors` are those of the current reading, for the envelope."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._logged: set[str] = set()

    def begin_reading(self) -> None:
        """Forget the errors of the previous reading."""
        self.errors = []

    def add(self, path: str, error: Exception) -> None:
        """Add an error, prefixed by the path unless it already is."""
        text = str(error)
        self.errors.append(text if text.startswith(path) else f"{path}: {text}")

    def log_once(self, key: str, text: str) -> None:
        """Log a missing permission once, because it does not change between samples."""
        if key not in self._logged:
            self._logged.add(key)
            logger.warning("%s", text)
