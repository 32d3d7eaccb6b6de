"""Collectors: each reads one subject of the node during a scrape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.exporter.settings import COLLECTORS, READER, list_collectors
from ccagent.log import logger
from ccagent.machine.descriptors import KeptFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccagent.exporter.exposition import FamilyRows, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node


class Collector(ABC):
    """A reader of one subject.

    name: in COLLECTORS, `collect[]` and `exclude[]`. is_foreign: whether its family names may clash
    with those of other collectors; the other collectors then win. Calls never overlap.
    """

    name: str = ""
    is_foreign = False

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        self.settings = settings
        self.sources = sources
        self._kept: KeptFiles | None = None

    def keep_files(self, node: Node) -> KeptFiles:
        """Begin a reading of files that stay open, and return them."""
        if self._kept is None:
            self._kept = KeptFiles(node)
        self._kept.sweep()
        return self._kept

    @abstractmethod
    def collect(self, node: Node) -> Iterable[FamilyRows]:
        """Return the families with their samples.

        Raise NotHereError if the machine lacks the subject, CcagentError for other failures.
        """

    def close(self) -> None:
        """Close open files and processes."""
        self._kept = None

    def warn(self, problem: object) -> None:
        """Log a problem that makes some values missing. Repetitions are rate-limited."""
        logger.warning("exporter: %s: %s", self.name, problem)


class FunctionCollector(Collector):
    """A collector without state: `read` returns the families and raises as `collect` does."""

    def __init__(
        self,
        settings: ExporterSettings,
        sources: NodeSources,
        read: Callable[[Node], Iterable[FamilyRows]],
    ) -> None:
        super().__init__(settings, sources)
        self._read = read

    def collect(self, node: Node) -> Iterable[FamilyRows]:
        """Return the families of `read`."""
        return self._read(node)


def make_collectors(settings: ExporterSettings, sources: NodeSources) -> dict[str, list[Collector]]:
    """Return the configured collectors by set of names. Import the modules of these sets."""
    return {
        name_set: [
            _make(name, COLLECTORS[name_set].get(name, READER), settings, sources)
            for name, is_default in list_collectors(name_set).items()
            if (name in settings.collectors if settings.collectors else is_default)
            and name not in settings.exclude
        ]
        for name_set in dict.fromkeys(settings.names)
    }


def _make(name: str, place: str, settings: ExporterSettings, sources: NodeSources) -> Collector:
    """Make a collector. All readers share one class; `name` selects the reader."""
    module, _, kind = place.partition(":")
    make = getattr(import_module(module), kind)
    if isinstance(make, type):
        made: Collector = make(settings, sources)
    else:
        made = FunctionCollector(settings, sources, make)
    made.name = name
    return made


def read_text(node: Node | KeptFiles, path: str) -> str:
    """Return a small file of /sys or /proc without trailing line breaks.

    Return "" if the file is missing or can't be read, such as `carrier` of an interface that is
    down.
    """
    try:
        return node.read_single(path).decode("utf-8", "replace").rstrip("\n")
    except (CcagentError, ValueError):  # a path with a NUL byte
        return ""


def read_number(node: Node | KeptFiles, path: str) -> int | None:
    """Return the integer in a file of /sys, decimal or 0x...; None if the file has none."""
    try:
        return int(node.read_single(path), 0)
    except (CcagentError, ValueError):
        return None


def read_numbers(
    node: Node | KeptFiles, files: Iterable[tuple[Labels, str]], factor: int = 1
) -> list[tuple[Labels, float]]:
    """Return the labels of files with their integers * factor, without files that have none."""
    return [
        (labels, value * factor)
        for labels, path in files
        if (value := read_number(node, path)) is not None
    ]


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
