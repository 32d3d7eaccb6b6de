"""What a process source could not do: told with each sample, or said once."""

from __future__ import annotations

from ccagent.log import logger


class Complaints:
    """`errors` are those of the current reading, a sentence each; they go into the envelope."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._said: set[str] = set()

    def begin_reading(self) -> None:
        """Forget the errors of the reading before."""
        self.errors = []

    def add(self, path: str, error: Exception) -> None:
        """Add an error, with the path in front of it if it doesn't begin with that."""
        text = str(error)
        self.errors.append(text if text.startswith(path) else f"{path}: {text}")

    def say_once(self, key: str, text: str) -> None:
        """Log what this user may not see; it won't change from sample to sample."""
        if key not in self._said:
            self._said.add(key)
            logger.warning("%s", text)
