"""Files of a textfile collector: the one that ccagent writes, and those that it exposes.

Source: prometheus/docs, instrumenting/exposition_formats.md.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import (
    CcagentError,
    ConfigurationError,
    NotPermittedError,
    TransportError,
    UnparsableError,
)
from ccagent.exporter.collector import Collector
from ccagent.exporter.exposition import WrittenFamily, clean, escape, gauge, join_text
from ccagent.service.private_directories import list_trusted_users, open_directory
from ccagent.service.private_files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.exposition import Block, FamilyRows, Kind, Labels
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.machine.node import Node


NAME = "ccagent.prom"
_MODE = 0o644


def write_textfile(directory: str, blocks: list[Block]) -> None:
    """Write the families to DIRECTORY/ccagent.prom atomically.

    Raise ConfigurationError if the directory does not exist or `blocks` is empty, TransportError
    if writing fails.
    """
    if not blocks:
        raise ConfigurationError(
            "nothing to write: families of node_exporter are omitted; choose other --names"
        )
    if not os.path.isdir(directory):
        raise ConfigurationError(f"{directory}: no such directory")
    write_public(os.path.join(directory, NAME), join_text(blocks))


def write_public(path: str, content: bytes) -> None:
    """Replace a file that all users may read. Raise TransportError if that fails."""
    try:
        replace_file(path, content, _MODE)
    except (OSError, NotPermittedError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TransportError(f"{path}: not written: {reason}") from error


_KINDS: dict[str, Kind] = {
    "counter": "counter", "gauge": "gauge", "untyped": "untyped", "histogram": "histogram",
    "summary": "summary",
}  # fmt: skip
_SUFFIXES: dict[str, frozenset[Kind]] = {
    "_bucket": frozenset({"histogram"}),
    "_sum": frozenset({"histogram", "summary"}),
    "_count": frozenset({"histogram", "summary"}),
}
"""Suffixes of sample names, and the family types that use them."""
_BOUNDS = {"histogram": "le", "summary": "quantile"}
"""Labels with a number."""
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\[n"\\])*)"\s*', re.ASCII)
_ESCAPED = re.compile(r"\\(.)")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?inf(?:inity)?|nan",
    re.ASCII | re.IGNORECASE,
)
_NO_TEXT = re.compile("[\ud800-\udfff]")
"""Bytes that are not UTF-8, decoded with surrogateescape."""
_EXACT = 2**53


class TextFamily(NamedTuple):
    """A family of a text. samples: numbers by line prefix `name{labels} `. help: "" if none."""

    kind: Kind
    help: str
    samples: dict[str, float]


def parse_text(text: str) -> dict[str, TextFamily]:
    """Return the families of a text by name.

    Raise UnparsableError with the line's number for invalid text, and for time stamps: a scrape
    has current values.
    """
    if text and not text.endswith("\n"):
        raise UnparsableError("the last line has no line break: the file may be incomplete")
    reader = _TextReader()
    for number, line in enumerate(text.split("\n"), 1):
        try:
            reader.take(line.strip(" \t\r"))
        except UnparsableError as error:
            raise UnparsableError(f"line {number}: {error}") from None
    return {name: family for name, family in reader.families.items() if family.samples}


class _TextReader:
    """A parser of single lines that collects families."""

    def __init__(self) -> None:
        self.families: dict[str, TextFamily] = {}

    def take(self, line: str) -> None:
        """Parse a stripped line. Raise UnparsableError if it is invalid."""
        if not line:
            return
        if line.startswith("#"):
            self._take_comment(line)
            return
        if _NO_TEXT.search(line):
            raise UnparsableError("not text in UTF-8")
        found = _NAME.match(line)
        if found is None:
            raise UnparsableError("no metric name")
        labels, rest = _parse_labels(line[found.end() :].lstrip(" \t"))
        pairs = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if value)
        words = rest.split()
        if len(words) == 2:
            raise UnparsableError("time stamps are not allowed")
        if len(words) != 1 or not _NUMBER.fullmatch(words[0]):
            raise UnparsableError("no number")
        prefix = f"{found[0]}{{{pairs}}} " if pairs else f"{found[0]} "
        kind, _, samples = self._family_of(found[0])
        bound = _BOUNDS.get(kind, "")
        # Readers that check it, as node_exporter's does, would lose the whole response.
        if bound in labels and not _NUMBER.fullmatch(labels[bound]):
            raise UnparsableError(f"the label {bound} is no number")
        if prefix in samples:
            raise UnparsableError(f"{prefix.strip()} occurs twice")
        number = float(words[0])
        samples[prefix] = int(number) if number.is_integer() and abs(number) < _EXACT else number

    def _take_comment(self, line: str) -> None:
        words = line[1:].split(None, 2)  # no blank is needed between # and the word
        if len(words) < 2 or words[0] not in {"HELP", "TYPE"}:
            return
        name, text = words[1], words[2] if len(words) > 2 else ""
        if not _NAME.fullmatch(name):
            raise UnparsableError("no metric name")
        known = self.families.get(name) or TextFamily("untyped", "", {})
        if words[0] == "HELP":
            known = known._replace(help=clean(_ESCAPED.sub(_unescape, text)))
        elif not text:
            return  # a line without a type is a comment, for node_exporter too
        elif text not in _KINDS:
            raise UnparsableError(f"{text!r} is not a type")
        elif known.samples:
            raise UnparsableError("TYPE after the family's samples")
        else:
            known = known._replace(kind=_KINDS[text])
        self.families[name] = known

    def _family_of(self, name: str) -> TextFamily:
        for suffix, kinds in _SUFFIXES.items():
            known = self.families.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
            if known is not None and known.kind in kinds:
                return known
        return self.families.setdefault(name, TextFamily("untyped", "", {}))


def _parse_labels(text: str) -> tuple[dict[str, str], str]:
    """Return the labels with escaped values, and the text after them."""
    if not text.startswith("{"):
        return {}, text
    labels: dict[str, str] = {}
    position = 1
    while not text.startswith("}", position):
        found = _LABEL.match(text, position)
        if found is None or found[1] in labels or found[1] == "__name__":
            raise UnparsableError("a label is malformed")
        labels[found[1]] = escape(_ESCAPED.sub(_unescape, found[2]))
        position = found.end()
        if text.startswith(",", position):
            position += 1
            while text.startswith((" ", "\t"), position):
                position += 1
        elif not text.startswith("}", position):
            raise UnparsableError("a label is malformed")
    return labels, text[position + 1 :]


def _unescape(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


_ERROR = gauge(
    "node_textfile_scrape_error",
    "1 if there was an error opening or reading a file, 0 otherwise",
)  # fmt: skip
_MTIME = gauge(
    "node_textfile_mtime_seconds", "Unixtime mtime of textfiles successfully read.", "file"
)
_SUFFIX = ".prom"
_LARGEST = 4 * 1024 * 1024
_MOST_FILES = 200
_MOST_SAMPLES = 50_000
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _KnownFile(NamedTuple):
    """A parsed file. stamp: inode, mtime (ns) and size, which detect changes."""

    stamp: tuple[int, int, int]
    families: dict[str, TextFamily]


class TextfileCollector(Collector):
    """Files `*.prom` of a directory. An invalid file only loses its own families."""

    is_foreign = True

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._files: dict[str, _KnownFile] = {}
        self._families: dict[tuple[str, str, str], WrittenFamily] = {}
        self._is_good = True

    def collect(self, node: Node) -> Iterator[FamilyRows]:
        """Read the files. Unchanged files are not parsed again."""
        self._is_good = True
        directory = self.settings.textfile_directory
        files = self._read(node.root + directory.lstrip("/")) if directory else {}
        merged: dict[str, TextFamily] = {}
        series: set[str] = set()
        mtimes: list[tuple[Labels, float]] = []
        for name, known in files.items():
            path = os.path.join(directory, name)
            try:
                _merge(merged, series, known.families, path)
            except UnparsableError as error:
                self._refuse(f"{path}: {error}")
                continue
            mtimes.append(((path,), known.stamp[1] / 1e9))
        yield _ERROR, [((), int(not self._is_good))]
        yield _MTIME, mtimes
        families: dict[tuple[str, str, str], WrittenFamily] = {}
        for name, each in merged.items():
            key = (name, each.kind, each.help)
            family = self._families.get(key) or WrittenFamily(name, each.kind, each.help)
            families[key] = family
            yield family, [((prefix,), number) for prefix, number in each.samples.items()]
        self._families = families

    def _refuse(self, problem: object) -> None:
        self._is_good = False
        self.warn(problem)

    def _read(self, directory: str) -> dict[str, _KnownFile]:
        """Return the parsed files by name. Invalid files are logged and omitted."""
        before, self._files = self._files, {}
        try:
            descriptor = open_directory(directory)
        except (OSError, NotPermittedError) as error:
            self._refuse(f"textfile-directory: {directory}: {error}")
            return {}
        try:
            # A descriptor opened with O_PATH can't be listed itself.
            names = sorted(os.listdir(f"/proc/self/fd/{descriptor}"))
            chosen = [each for each in names if each.endswith(_SUFFIX) and each != NAME]
            if len(chosen) > _MOST_FILES:
                self._refuse(f"{directory}: {len(chosen)} files: only {_MOST_FILES} are read")
            for name in chosen[:_MOST_FILES]:
                try:
                    self._files[name] = _read_file(descriptor, name, before.get(name))
                except FileNotFoundError:  # replaced or removed meanwhile
                    continue
                except (OSError, CcagentError) as error:
                    reason = _show(error) if isinstance(error, OSError) else error
                    self._refuse(f"{os.path.join(directory, name)}: {reason}")
        except OSError as error:
            self._refuse(f"textfile-directory: {directory}: {error.strerror}")
        finally:
            os.close(descriptor)
        return self._files


def _show(error: OSError) -> str:
    is_link = error.errno == errno.ELOOP
    return "links are not followed" if is_link else error.strerror or str(error)


def _read_file(directory: int, name: str, known: _KnownFile | None) -> _KnownFile:
    """Read and parse a file of an open directory.

    Raise OSError if reading fails, NotPermittedError for an unsafe file, UnparsableError for
    invalid content.
    """
    descriptor = os.open(name, _FLAGS, dir_fd=directory)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotPermittedError("not a regular file")
        if status.st_uid not in list_trusted_users():
            raise NotPermittedError("owned neither by root nor by ccagent's user: chown it")
        if status.st_mode & stat.S_IWOTH:
            raise NotPermittedError("world-writable: chmod o-w it")
        if status.st_size > _LARGEST:
            raise UnparsableError(f"larger than {_LARGEST} bytes")
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if known is not None and known.stamp == stamp:
            return known
        content = b""
        while len(content) <= _LARGEST and (part := os.read(descriptor, _LARGEST + 1)):
            content += part
        if len(content) > _LARGEST:
            raise UnparsableError(f"larger than {_LARGEST} bytes")
        # Bytes that are no text may stand in comments, such as a HELP in Latin-1.
        return _KnownFile(stamp, parse_text(content.decode("utf-8", "surrogateescape")))
    finally:
        os.close(descriptor)


def _merge(
    merged: dict[str, TextFamily], series: set[str], families: dict[str, TextFamily], path: str
) -> None:
    """Add the families of a file to `merged`, all or none.

    series: the line prefixes of all samples. Raise UnparsableError if a type or series clashes with
    another file.
    """
    added: set[str] = set()
    for name, each in families.items():
        if name in merged and merged[name].kind != each.kind:
            raise UnparsableError(f"{name} has another type in another file")
        if not (series.isdisjoint(each.samples) and added.isdisjoint(each.samples)):
            raise UnparsableError(f"{name} has a series of another file")
        added.update(each.samples)
    if len(series) + len(added) > _MOST_SAMPLES:
        raise UnparsableError(f"more than {_MOST_SAMPLES} samples in all files")
    series |= added
    for name, each in families.items():
        known = merged.get(name)
        if known is None:
            text = each.help or f"Metric read from {path}"
            merged[name] = each._replace(help=text, samples=dict(each.samples))
        else:
            known.samples.update(each.samples)
