"""The files of a configuration: the main one, and `conf.d/*.toml` beside it, merged.

Files are taken in the order of their names. Tables of the same name are joined; a key that stands
in two files is an error. No secret belongs into any of them, so everybody may read them; but who
may write one decides what ccagent runs and where it sends, so others' files are refused.
"""

from __future__ import annotations

import os
import stat
from typing import Any, NamedTuple

from ccagent.errors import ConfigurationError, NotPermittedError
from ccagent.private_files import open_trusted, trusted_users
from ccagent.settings import as_table

DIRECTORY = "conf.d"
"""What the directory beside the main file is called."""

COMPLETED = "/etc/ccagent"
"""The directory whose configurations the defaults of packages complete."""

_LARGEST = 4 * 1024 * 1024


class Files(NamedTuple):
    """What the files of a configuration hold together, unchecked.

    `origins` tells by key, with its tables before it, which file it stands in.
    """

    table: dict[str, Any]
    paths: list[str]
    origins: dict[tuple[str, ...], str]

    def named(self, complaint: str) -> str:
        """Name the right file in a complaint `MAIN-FILE: KEY...` about the whole."""
        main = self.paths[0]
        rest = complaint.removeprefix(f"{main}: ")
        if len(self.paths) == 1 or rest == complaint:
            return complaint
        keys = {".".join(key): path for key, path in self.origins.items()}
        about = [key for key in keys if rest.startswith(key) and _ends(rest[len(key) :])]
        return f"{keys[max(about, key=len)] if about else main}: {rest}"


def read_files(path: str) -> Files:
    """Read a configuration: a file and those of the directory beside it.

    Raises ConfigurationError, which names the file and, where it is not TOML, the line.
    """
    files = Files({}, [], {})
    for each in [path, *_beside(path)]:
        table = read_table(each)
        files.paths.append(each)
        try:
            _merge(files, files.table, table, each, ())
        except RecursionError:
            raise ConfigurationError(f"{each}: tables nested too deep") from None
    home = os.path.dirname(os.path.abspath(path))
    if home == COMPLETED:
        from ccagent.packaged_defaults import complete, list_packaged

        for each in list_packaged(os.path.join(home, DIRECTORY)):
            files.paths.append(each)
            complete(files.table, read_table(each), each, files.origins)
    return files


def read_table(path: str) -> dict[str, Any]:
    """Read one file of TOML, unchecked. Raises ConfigurationError."""
    import tomllib

    try:
        with open(open_trusted(path), "rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            text = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except NotPermittedError as error:
        raise ConfigurationError(str(error)) from None
    if len(text) > _LARGEST:
        raise ConfigurationError(f"{path}: larger than {_LARGEST} bytes")
    try:
        return tomllib.loads(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{path}: not text in UTF-8 (at line {line})") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: nested too deep") from None
    except ValueError as error:  # TOMLDecodeError, and a number of more digits than Python reads
        raise ConfigurationError(f"{path}: {error}") from None


def _beside(path: str) -> list[str]:
    """List the files `conf.d/*.toml` beside a file, in the order of their names."""
    directory = os.path.join(os.path.dirname(path), DIRECTORY)
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigurationError(f"{directory}: {error.strerror}") from None
    found = [
        os.path.join(directory, name)
        for name in sorted(names)
        if name.endswith(".toml") and not name.startswith(".")
    ]
    if found:
        _refuse_strangers(directory, path, stat.S_IFDIR)
    for each in found:
        _refuse_strangers(each, path, stat.S_IFREG)
    return found


def _refuse_strangers(path: str, main: str, kind: int) -> None:
    """Raise ConfigurationError for what somebody else could have put there."""
    try:
        status, owner = os.stat(path), os.stat(main).st_uid
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from None
    if stat.S_IFMT(status.st_mode) != kind:
        wanted = "directory" if kind == stat.S_IFDIR else "regular file"
        raise ConfigurationError(f"{path}: not a {wanted}")
    if status.st_uid not in {0, os.geteuid(), owner}:
        raise ConfigurationError(f"{path}: belongs to another user (uid {status.st_uid})")
    if status.st_mode & stat.S_IWOTH:
        raise ConfigurationError(f"{path}: others can write it: chmod o-w it")


def _check_owner(path: str, status: os.stat_result) -> None:
    """Raise ConfigurationError for a file that another user could have written."""
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"{path}: not a regular file")
    if status.st_uid not in trusted_users():
        raise ConfigurationError(f"{path}: belongs to another user (uid {status.st_uid}): chown it")
    if status.st_mode & stat.S_IWOTH:
        raise ConfigurationError(f"{path}: others can write it: chmod o-w it")


def _merge(
    files: Files, into: dict[str, Any], table: dict[str, Any], path: str, where: tuple[str, ...]
) -> None:
    for key, value in table.items():
        full = (*where, key)
        if key not in into:
            into[key] = {} if _is_table(value) else value
            files.origins[full] = path
        elif not (_is_table(value) and _is_table(into[key])):
            raise ConfigurationError(
                f"{path}: {'.'.join(full)}: stands in {files.origins[full]} already"
            )
        _merge(files, into[key], as_table(value), path, full)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _ends(rest: str) -> bool:
    """Tell whether a key ends where `rest` begins."""
    return not rest or not (rest[0].isalnum() or rest[0] in "-_")
