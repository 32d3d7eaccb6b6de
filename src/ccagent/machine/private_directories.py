"""Directories on the way to ccagent's files, in places where other users may write as well.

No link of another user is followed: a path is opened component by component, and a symbolic link in
it must belong to root or to the user of this process. A created directory has exactly the mode that
was asked for, whatever the umask, and if root creates it, the owner of the directory above.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import NoReturn

from ccagent.errors import NotPermittedError

MOST_LINKS = 40
"""Symbolic links that are followed on the way to a file."""

_DIRECTORY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def make_directory(path: str, mode: int = 0o700) -> None:
    """Create a directory, and those above it with mode 755. One that exists stays as it is.

    A directory that root creates takes the owner of its parent. Raises OSError, NotPermittedError.
    """
    path = os.path.abspath(path)
    parent, name = os.path.split(path)
    if not name:
        return
    directory = open_made_directory(parent)
    try:
        make_directory_at(directory, path, mode)
    finally:
        os.close(directory)
    os.close(open_directory(path))


def open_made_directory(path: str) -> int:
    """Open a directory; create it, and those above it, with mode 755 if it is missing."""
    try:
        return open_directory(path)
    except FileNotFoundError:
        make_directory(path, 0o755)
        return open_directory(path)


def make_directory_at(directory: int, path: str, mode: int) -> None:
    """Create the last component of `path` in an open directory, unless something has its name."""
    name = os.path.basename(path)
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:
        return
    made = os.open(
        name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory
    )
    try:
        if not os.listdir(made):  # else another process has replaced it
            take_owner(made, directory)
            set_mode(made, mode)
    finally:
        os.close(made)


def open_directory(path: str) -> int:
    """Open a directory by following no link of another user; return its descriptor (O_PATH).

    Raises OSError, and NotPermittedError for such a link.
    """
    current = os.open("/" if path.startswith("/") else ".", _DIRECTORY | os.O_DIRECTORY)
    rest = _components(path)
    links = 0
    while rest:
        previous = current
        try:
            current, target = _enter(previous, rest.pop(), path)
        finally:
            os.close(previous)
        rest += target
        links += bool(target)
        if links > MOST_LINKS:
            os.close(current)
            raise os_error(errno.ELOOP, path)
    return current


def check_directory(path: str) -> str:
    """Return why files in a directory are not safe from other users, or "".

    Neither the directory nor one above it may be writable by others. If the directory does not
    exist yet, the nearest existing one above it is checked.
    """
    path = os.path.abspath(path)
    while not os.path.lexists(path):
        path = str(os.path.dirname(path))
    try:
        os.close(open_directory(path))
        real = str(os.path.realpath(path))
        owner = os.stat(real).st_uid
        reason = _reason_against(real, owner, is_last=True)
        while not reason and real != "/":
            real = str(os.path.dirname(real))
            reason = _reason_against(real, owner, is_last=False)
    except OSError as error:
        return f"{path}: {error.strerror}"
    except NotPermittedError as error:
        return str(error)
    return reason


def list_trusted_users() -> set[int]:
    """Return the users whose links are followed: root, our own, and the owner of `/`.

    In a user namespace the last one owns the system's files.
    """
    return {0, os.geteuid(), os.stat("/").st_uid}


def _components(path: str) -> list[str]:
    """Return the names in a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _enter(directory: int, name: str, path: str) -> tuple[int, list[str]]:
    """Open one component of a path; for a link return where it starts, and its components."""
    try:
        # O_DIRECTORY triggers an automatic mount.
        return os.open(name, _DIRECTORY | os.O_DIRECTORY, dir_fd=directory), []
    except NotADirectoryError:
        pass
    except OSError as error:
        raise_named(error, path)
    target = read_link(directory, name, path)
    start = "/" if target.startswith("/") else "."
    return os.open(start, _DIRECTORY | os.O_DIRECTORY, dir_fd=directory), _components(target)


def read_link(directory: int, name: str, path: str) -> str:
    """Return where a symbolic link leads. Raises NotPermittedError if it is another user's."""
    link = os.open(name, _DIRECTORY, dir_fd=directory)
    try:
        status = os.fstat(link)
        if not stat.S_ISLNK(status.st_mode):
            raise os_error(errno.ENOTDIR, path)
        if status.st_uid not in list_trusted_users():
            raise NotPermittedError(
                f"{path}: {name} is a symbolic link of user {status.st_uid} and is not followed"
            )
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def take_owner(descriptor: int, directory: int) -> None:
    """Change the owner of a file created by root to that of its directory."""
    owner = os.fstat(directory)
    if os.fstat(descriptor).st_uid == 0 and owner.st_uid != 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def set_mode(descriptor: int, mode: int) -> None:
    """Set exactly this mode, unless the file system has none of its own (vfat)."""
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, mode)


def _reason_against(path: str, owner: int, *, is_last: bool) -> str:
    """Return why other users can change what is in one directory of a path, or ""."""
    status = os.stat(path)
    mode = status.st_mode
    if not stat.S_ISDIR(mode):
        return f"{path}: not a directory"
    if status.st_uid not in {*list_trusted_users(), owner}:
        return f"{path}: belongs to user {status.st_uid}, who can replace its content"
    by_others = bool(mode & stat.S_IWOTH)
    by_group = bool(mode & stat.S_IWGRP) and not _is_own_group(status.st_gid, owner)
    if mode & stat.S_ISVTX and not is_last:
        return ""  # others can rename or remove only their own files
    if by_others:
        return (
            f"{path}: every user can create files in it: use a directory of its own, or chmod o-w"
        )
    if by_group:
        return f"{path}: group {status.st_gid} can create files in it: chmod g-w"
    return ""


def _is_own_group(group: int, owner: int) -> bool:
    """Return whether a group is root's, that of this process, or that of a directory's owner."""
    if group in {0, os.getegid()}:
        return True
    import pwd

    try:
        return pwd.getpwuid(owner).pw_gid == group
    except KeyError:
        return False


def os_error(number: int, path: str) -> OSError:
    """Return the OSError of a number for a path."""
    return OSError(number, os.strerror(number), path)


def raise_named(error: OSError, path: str) -> NoReturn:
    """Raise an error of a call with `dir_fd` again, with the whole path."""
    raise os_error(error.errno or 0, path) from error
