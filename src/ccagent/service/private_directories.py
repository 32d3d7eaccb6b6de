"""Safe opening and creation of directories, also where other users may write.

No symbolic link of another user is followed. A path is opened component by component, and a
symbolic link in it must belong to root or to the user of this process. A created directory has
exactly the requested mode, independent of the umask. If root creates it, it gets the owner of its
parent.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import NoReturn

from ccagent.errors import NotPermittedError

MOST_LINKS = 40
"""Maximum number of symbolic links in a path."""

_DIRECTORY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def make_directory(path: str, mode: int = 0o700) -> None:
    """Create a directory, and its parents with mode 755. An existing one is not changed.

    A directory created by root gets the owner of its parent. Raise OSError or NotPermittedError.
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
    """Open a directory. Create it and its parents with mode 755 if they are missing."""
    try:
        return open_directory(path)
    except FileNotFoundError:
        make_directory(path, 0o755)
        return open_directory(path)


def make_directory_at(directory: int, path: str, mode: int) -> None:
    """Create the last component of `path` in an open directory, unless it exists."""
    name = os.path.basename(path)
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:
        return
    made = os.open(
        name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory
    )
    try:
        if not os.listdir(made):  # if not, another process has replaced it
            take_owner(made, directory)
            set_mode(made, mode)
    finally:
        os.close(made)


def open_directory(path: str) -> int:
    """Open a directory without following other users' links. Return its O_PATH descriptor.

    Raise OSError, or NotPermittedError for such a link.
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
    """Return the reason why files in a directory are not safe from other users, or "".

    Other users may not have write permission in the directory or its ancestors. If the directory
    does not exist, its nearest existing ancestor is checked.
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
    """Return the users whose links are followed: root, this user, and the owner of `/`.

    In a user namespace the owner of `/` owns the system's files.
    """
    return {0, os.geteuid(), os.stat("/").st_uid}


def _components(path: str) -> list[str]:
    """Return the names in a path in reverse order."""
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _enter(directory: int, name: str, path: str) -> tuple[int, list[str]]:
    """Open one component of a path. For a link, return its start directory and components."""
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
    """Return the target of a symbolic link. Raise NotPermittedError if it is another user's."""
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
    """Change the owner of a file created by root to the owner of its directory."""
    owner = os.fstat(directory)
    if os.fstat(descriptor).st_uid == 0 and owner.st_uid != 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def set_mode(descriptor: int, mode: int) -> None:
    """Set exactly this mode, unless the file system does not store modes (vfat)."""
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, mode)


def _reason_against(path: str, owner: int, *, is_last: bool) -> str:
    """Return the reason why other users can change one directory of a path, or ""."""
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
        return f"{path}: every user can create files in it: use a private directory, or chmod o-w"
    if by_group:
        return f"{path}: group {status.st_gid} can create files in it: chmod g-w"
    return ""


def _is_own_group(group: int, owner: int) -> bool:
    """Return whether a group is root's, this process's, or that of the directory's owner."""
    if group in {0, os.getegid()}:
        return True
    import pwd

    try:
        return pwd.getpwuid(owner).pw_gid == group
    except KeyError:
        return False


def os_error(number: int, path: str) -> OSError:
    """Return the OSError of an errno for a path."""
    return OSError(number, os.strerror(number), path)


def raise_named(error: OSError, path: str) -> NoReturn:
    """Raise the error of a call with `dir_fd` again, with the whole path."""
    raise os_error(error.errno or 0, path) from error
