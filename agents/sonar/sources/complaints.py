"""Errors of a process source: sent with each sample, or logged once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccagent.log import logger

if TYPE_CHECKING:
    from ccagent.machine.node import Node


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

    def log_once(self, key: str, text: str, node: Node | None = None, *needed: str) -> None:
        """Log a missing permission once, because it does not change between samples.

        node, needed: the log also names those of these capabilities that this process lacks.
        """
        if key in self._logged:
            return
        self._logged.add(key)
        if node is not None:
            from ccagent.machine.parsed import read_lack

            text += f": {read_lack(node, *needed)}"
        logger.warning("%s", text)
