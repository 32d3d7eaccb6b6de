"""The base class of collectors: each reads one subject of the node during a scrape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccagent.exporter.family import Family, Rows
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node


class Collector(ABC):
    """A reader of one subject.

    name: in `collectors`, `collect[]` and `exclude[]`. is_foreign: whether its family names may
    clash with those of other collectors; the other collectors then win. Calls never overlap.
    """

    name: str = ""
    is_foreign = False

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        self.settings = settings
        self.sources = sources

    @abstractmethod
    def collect(self, node: Node) -> Iterable[tuple[Family, Rows]]:
        """Return the families with their samples.

        Raise NotHereError if the machine lacks the subject, CcagentError for other failures.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Close open files and processes."""

    def warn(self, problem: object) -> None:
        """Log a problem that makes some values missing. Repetitions are rate-limited."""
        logger.warning("exporter: %s: %s", self.name, problem)


def read_text(node: Node, path: str) -> str:
    """Return a small file of /sys or /proc without trailing line breaks.

    Return "" if the file is missing or can't be read, such as `carrier` of an interface that is
    down.
    """
    try:
        return node.read_single(path).decode("utf-8", "replace").rstrip("\n")
    except (CcagentError, ValueError):  # a path with a NUL byte
        return ""


def read_number(node: Node, path: str) -> int | None:
    """Return the integer in a file of /sys, decimal or 0x...; None if the file has none."""
    try:
        return int(node.read_single(path), 0)
    except (CcagentError, ValueError):
        return None


def list_names(node: Node, path: str) -> list[str]:
    """Return the sorted names in a directory; [] if it doesn't exist."""
    try:
        return sorted(node.list(path))
    except NotHereError:
        return []


def unsigned(text: bytes | str) -> int:
    """Return a number that is not negative. Raise UnparsableError for any other text."""
    try:
        value = int(text)
    except ValueError as error:
        raise UnparsableError(f"not a number: {text[:40]!r}") from error
    if value < 0:
        raise UnparsableError(f"negative: {text[:40]!r}")
    return value
