"""Errors of a process source: in each sample, or logged once."""

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
        """Add an error, with the path in front of it if it doesn't begin with that."""
        text = str(error)
        self.errors.append(text if text.startswith(path) else f"{path}: {text}")

    def log_once(self, key: str, text: str) -> None:
        """Log a lack of permission, which does not change from sample to sample."""
        if key not in self._logged:
            self._logged.add(key)
            logger.warning("%s", text)
