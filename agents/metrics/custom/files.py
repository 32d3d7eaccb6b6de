"""Metrics in files of the site: [agents.metrics.files.NAME]."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, UnparsableError
from ccagent.machine.background import BackgroundCall

if TYPE_CHECKING:
    from ccagent.agents.metrics.custom.points import CustomMetrics
    from ccagent.agents.metrics.custom.settings import FileSettings
    from ccagent.agents.metrics.readers.base import Gauge
    from ccagent.config.duration import Duration
    from ccagent.machine.node import Node

_SUFFIX = ".lp"
_LARGEST = 1024 * 1024
_MOST_FILES = 256
_PATIENCE = 1.0
"""Seconds that a sample waits for all files. Later samples do not wait for a hung file."""


class Texts(NamedTuple):
    """Content of the files of a table, and errors."""

    content: bytes
    errors: list[str]


def read_texts(node: Node, settings: FileSettings) -> Texts:
    """Read the file or all files of the directory: at most 1 MiB and 256 files.

    Raise CcagentError on failure. A bad file in a directory is skipped and reported.
    """
    path = settings.path.strip("/")
    try:
        names = node.list(path)
    except NotHereError:
        return Texts(read_text(node, path, _LARGEST, settings.max_age), [])
    names = sorted(name for name in names if name.endswith(_SUFFIX) and name[0] != ".")
    errors: list[str] = []
    if len(names) > _MOST_FILES:
        errors.append(f"more than {_MOST_FILES} files: the rest is skipped")
    contents: list[bytes] = []
    room = _LARGEST
    for name in names[:_MOST_FILES]:
        try:
            content = read_text(node, f"{path}/{name}", room, settings.max_age)
        except CcagentError as error:
            errors.append(str(error))
            continue
        room -= len(content)
        contents.append(content)
    return Texts(b"".join(contents), errors)


def read_text(node: Node, path: str, limit: int, max_age: Duration) -> bytes:
    """Read a complete and recent file. Raise CcagentError otherwise."""
    written, content = node.read_trusted(path, limit)
    age = node.clock.time() - written
    if age > max_age.seconds:
        raise UnparsableError(f"/{path}: written {age:.0f} s ago, which is over {max_age}")
    if -age > max_age.seconds:
        raise UnparsableError(f"/{path}: written {-age:.0f} s in the future")
    if content and not content.endswith(b"\n"):
        # An incomplete `123` may read as `12`.
        raise UnparsableError(f"/{path}: its last line has no end; is it being written?")
    return content


class FilesReader:
    """Reads the files of all tables. A hung network file system delays only its own files.

    errors: messages of the last reading.
    """

    name = "files"

    def __init__(self, files: dict[str, FileSettings], metrics: CustomMetrics) -> None:
        self.errors: list[str] = []
        self._files = files
        self._metrics = metrics
        self._reading: dict[str, BackgroundCall[Texts]] = {}

    def read(self, node: Node) -> list[Gauge]:
        """Return the values of all files."""
        self.errors = []
        hanging = set(self._reading)
        for name, settings in self._files.items():
            if name not in hanging:
                self._begin(node, name, settings)
        deadline = time.monotonic() + _PATIENCE
        found: list[Gauge] = []
        for name, reading in [*self._reading.items()]:
            source = f"file {name}"
            patience = 0.0 if name in hanging else deadline - time.monotonic()
            if not reading.wait(patience):
                self.errors.append(f"{source}: hangs; skipped until it answers")
                continue
            del self._reading[name]
            if name in hanging:
                continue  # the content may be old
            try:
                texts = reading.checked_result()
            except CcagentError as error:
                self.errors.append(f"{source}: {error}")
                continue
            self.errors += [f"{source}: {error}" for error in texts.errors]
            found += self._metrics.gauges(source, texts.content, node, self.errors)
        return found

    def _begin(self, node: Node, name: str, settings: FileSettings) -> None:
        try:
            self._reading[name] = BackgroundCall(lambda: read_texts(node, settings), f"file {name}")
        except CcagentError as error:
            self.errors.append(str(error))
