"""The collector of families in text files: textfile."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotPermittedError, UnparsableError
from ccagent.exporter.collector import Collector
from ccagent.exporter.family import WrittenFamily, gauge
from ccagent.exporter.text_parser import parse_text
from ccagent.exporter.textfile import NAME
from ccagent.service.private_directories import list_trusted_users, open_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccagent.exporter.family import Family, Labels, Rows
    from ccagent.exporter.settings import ExporterSettings
    from ccagent.exporter.sources import NodeSources
    from ccagent.exporter.text_parser import TextFamily
    from ccagent.machine.node import Node

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

    name = "textfile"
    is_foreign = True

    def __init__(self, settings: ExporterSettings, sources: NodeSources) -> None:
        super().__init__(settings, sources)
        self._files: dict[str, _KnownFile] = {}
        self._families: dict[tuple[str, str, str], WrittenFamily] = {}
        self._is_good = True

    def collect(self, node: Node) -> Iterator[tuple[Family, Rows]]:
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
        return _KnownFile(stamp, parse_text(content.decode()))
    except UnicodeDecodeError as error:
        raise UnparsableError("not text in UTF-8") from error
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
