"""The files of a configuration, and the conversion of their tables to settings.

The files are the main file, `conf.d/*.toml` beside it, and packages' defaults.
Files are read in the order of their names. Tables of the same name are merged. A key in two files
is an error. The files contain no secrets, so every user may read them. A writer of a file
determines the programs and the receivers of ccagent, so files of other users are refused.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ccagent.config.settings import Settings, as_table, is_table, make_value
from ccagent.errors import ConfigurationError, KeyProblem, NotPermittedError
from ccagent.log import logger
from ccagent.service.private_directories import list_trusted_users
from ccagent.service.private_files import open_trusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

COMMAND_LINE = "command line"
"""The place in errors if no file is read."""

DIRECTORY = "conf.d"
"""Name of the directory beside the main file."""

COMPLETED = "/etc/ccagent"
"""The directory of configurations that are completed by the defaults of packages."""

PACKAGED = "/usr/share/ccagent/conf.d"
"""Directory for the defaults of packages, one file per package."""

DEFAULT_PATH = "/etc/ccagent/ccagent.toml"
"""The file that every command reads without `--config` or `--no-config`."""

_LARGEST = 4 * 1024 * 1024

T = TypeVar("T", bound=Settings)
R = TypeVar("R")


class Files:
    """The unchecked content of the files of a configuration.

    origins: the file of each key, by the key and its tables. problems: problems of the files, such
    as invalid TOML. is_complete: if False, much of the table may be missing.
    """

    def __init__(self, place: str = "") -> None:
        self.table: dict[str, Any] = {}
        self.paths: list[str] = [place] if place else []
        self.origins: dict[tuple[str, ...], str] = {}
        self.texts: dict[str, str] = {}
        self.problems: list[str] = []
        self.left_out: set[str] = set()
        self.is_complete = True

    def locate(self, problems: Iterable[str]) -> list[str]:
        """Replace the place of problems by the file and line of their keys.

        Problems of keys in lines that are not TOML are omitted: they are already reported.
        """
        lines = self._lines()
        found: list[str] = []
        for problem in problems:
            if not isinstance(problem, KeyProblem):
                found.append(problem)
                continue
            keys = list(_key_and_tables(problem.key))
            if self.left_out.isdisjoint(keys):
                path, line = next((lines[key] for key in keys if key in lines), (self.paths[0], 0))
                found.append(problem.at(f"{path}: line {line}" if line else path))
        return found

    def line_of(self, name: str, path: str) -> int:
        """Return the line of a key in a file; 0 if unknown."""
        return _lines_of(self.texts.get(path, "")).get(name, 0)

    def _lines(self) -> dict[str, tuple[str, int]]:
        """Return file and line of each key and each table header."""
        found: dict[str, tuple[str, int]] = {}
        for path, text in self.texts.items():
            for name, line in _lines_of(text).items():
                found.setdefault(name, (path, line))
        return found


def read_files(path: str) -> Files:
    """Read a configuration: a file, and the files of the directory beside it.

    Raise ConfigurationError if a file can't be read. Invalid TOML is added to `problems`.
    """
    files = Files()
    _add_file(files, path)
    for each in _beside(path):
        _add_file(files, each)
    home = os.path.dirname(os.path.abspath(path))
    if home == COMPLETED:
        for each in _list_packaged(os.path.join(home, DIRECTORY)):
            _add_file(files, each, completes=True)
    return files


def _list_packaged(overriding: str) -> list[str]:
    """Return the files of defaults, sorted by name.

    A file of the same name in the directory `overriding` replaces a file of defaults. Raise
    ConfigurationError if the directory can't be read.
    """
    return [
        os.path.join(PACKAGED, name)
        for name in _list_toml(PACKAGED)
        if not os.path.lexists(os.path.join(overriding, name))
    ]


def _list_toml(directory: str) -> list[str]:
    """Return the names *.toml in a directory, sorted; none if it does not exist."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigurationError(f"{directory}: {error.strerror}") from error
    return sorted(name for name in names if name.endswith(".toml") and not name.startswith("."))


def _add_file(files: Files, path: str, *, completes: bool = False) -> None:
    """Add a file. completes: only keys that are missing, without an error for others."""
    table = _read_table(path, files)
    files.paths.append(path)
    try:
        _merge(files, files.table, table, path, (), completes=completes)
    except RecursionError as error:
        raise ConfigurationError(f"{path}: tables nested too deep") from error


def read_default() -> Files:
    """Read the default configuration, if it exists. Log if this user may not read it."""
    try:
        return read_files(DEFAULT_PATH)
    except ConfigurationError as error:
        if isinstance(error.__cause__, PermissionError):
            from ccagent.log import logger

            logger.warning("%s; defaults are used, as with --no-config", error)
        elif os.path.lexists(DEFAULT_PATH):
            raise
        return Files(COMMAND_LINE)


def read_regular_file(path: str, largest: int) -> tuple[bytes, os.stat_result]:
    """Return content and status of a file, through links of trusted users only.

    largest: maximum size in bytes. Raise ConfigurationError.
    """
    try:
        with open(open_trusted(path), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigurationError(f"{path}: not a regular file")
            content = file.read(largest + 1)
    except IsADirectoryError as error:
        raise ConfigurationError(f"{path}: not a regular file") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    except NotPermittedError as error:
        raise ConfigurationError(str(error)) from error
    if len(content) > largest:
        raise ConfigurationError(f"{path}: larger than {largest} bytes")
    return content, status


def _read_table(path: str, files: Files) -> dict[str, Any]:
    """Read one TOML file, unchecked. Keep its text and its problems."""
    text, status = read_regular_file(path, _LARGEST)
    _check_owner(path, status)
    try:
        decoded = text.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{path}: line {line}: not text in UTF-8") from error
    files.texts[path] = decoded
    import tomllib

    try:
        return tomllib.loads(decoded)
    except RecursionError as error:
        raise ConfigurationError(f"{path}: nested too deep") from error
    except ValueError:  # TOMLDecodeError, or a number with more digits than Python accepts
        return _read_what_can_be(path, decoded, files)


def _read_what_can_be(path: str, text: str, files: Files) -> dict[str, Any]:
    """Read a file with invalid TOML, to find its other errors."""
    from ccagent.config.toml_lines import parse_leniently

    try:
        parsed = parse_leniently(text)
    except RecursionError as error:
        raise ConfigurationError(f"{path}: nested too deep") from error
    for line, reason in sorted(parsed.errors):
        files.problems.append(f"{path}: line {line}: {reason}" if line else f"{path}: {reason}")
    files.left_out.update(".".join(key) for key in parsed.left_out)
    if parsed.table is None:
        files.is_complete = False
        return {}
    return parsed.table


def _beside(path: str) -> list[str]:
    """Return the files `conf.d/*.toml` beside a file, sorted by name."""
    directory = os.path.join(os.path.dirname(path), DIRECTORY)
    names = _list_toml(directory)
    if names:
        try:
            status = os.stat(directory)
        except OSError as error:  # it was removed meanwhile
            raise ConfigurationError(f"{directory}: {error.strerror}") from error
        _check_owner(directory, status)
    return [os.path.join(directory, name) for name in names]


def _check_owner(path: str, status: os.stat_result) -> None:
    """Raise ConfigurationError for a file or directory that another user could have written."""
    if status.st_uid not in list_trusted_users():
        raise ConfigurationError(f"{path}: belongs to another user (uid {status.st_uid}): chown it")
    if status.st_mode & stat.S_IWOTH:
        raise ConfigurationError(f"{path}: others can write it: chmod o-w it")


def _merge(
    files: Files,
    into: dict[str, Any],
    table: dict[str, Any],
    path: str,
    where: tuple[str, ...],
    *,
    completes: bool,
) -> None:
    for key, value in table.items():
        full = (*where, key)
        if key not in into:
            into[key] = {} if is_table(value) else value
            files.origins[full] = path
        elif not (is_table(value) and is_table(into[key])):
            if not completes:
                name = ".".join(full)
                line = f"line {found}: " if (found := files.line_of(name, path)) else ""
                problem = f"{path}: {line}{name}: is already set in {files.origins[full]}"
                files.problems.append(problem)
            continue
        _merge(files, into[key], as_table(value), path, full, completes=completes)


def _lines_of(text: str) -> dict[str, int]:
    from ccagent.config.toml_lines import list_statements

    found: dict[str, int] = {}
    for key, line in list_statements(text):
        for end in range(1, len(key) + 1):
            found.setdefault(".".join(key[:end]), line)
    return found


def _key_and_tables(key: str) -> Iterator[str]:
    """Yield a key such as `sinks.backend.url`, then its tables, the innermost first."""
    while key:
        yield key
        key = key[: key.rindex("[")] if key.endswith("]") else key.rpartition(".")[0]


def convert(table: object, settings: type[T], where: str, *, place: str) -> T:
    """Return an instance of `settings` from a table.

    place: the user's name of the source (a file's path). where: the table's key (`agents.sample`).
    Raise ConfigurationError with place, key and reason of each problem.
    """
    if table != {} and not as_table(table):
        raise ConfigurationError(KeyProblem(place, where, f"expected a table [{where}]"))
    if not table:
        # msgspec would evaluate the annotations of the type. That takes 1 ms.
        with suppress(TypeError):  # a key without a default
            return settings()
    try:
        return msgspec.convert(table, settings, dec_hook=make_value)
    except UnicodeEncodeError as error:
        raise ConfigurationError(KeyProblem(place, where, "not text in UTF-8")) from error
    except msgspec.ValidationError:
        return _convert_renamed(as_table(table), settings, where, place)


def _convert_renamed(table: dict[str, Any], settings: type[T], where: str, place: str) -> T:
    """Return `settings` from a table that does not fit, after replacing keys of old releases."""
    from ccagent.config.keys import find_problems, replace_renamed

    warnings: list[str] = []
    table = replace_renamed(table, settings, where, warnings)
    try:
        converted = msgspec.convert(table, settings, dec_hook=make_value)
    except msgspec.ValidationError as error:
        raise ConfigurationError(*find_problems(table, settings, where, place)) from error
    for warning in warnings:
        logger.warning("%s: %s", place, warning)
    return converted


def place_errors(place: str, table: str, check: Callable[..., R], *values: object) -> R:
    """Run a check of a table. Add the place to its errors; see `KeyProblem.of_table`."""
    try:
        return check(*values)
    except ConfigurationError as error:
        problems = [KeyProblem.of_table(place, table, text) for text in error.problems]
        raise ConfigurationError(*problems) from error
