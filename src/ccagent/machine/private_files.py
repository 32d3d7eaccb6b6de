"""Files and directories that ccagent makes in places where other users may write as well.

No link of another user is followed on the way to a file: a path is opened component by component,
and a symbolic link in it must belong to root or to the user of this process. An existing file must
be a regular file with one name whose owner is trusted. What ccagent creates has exactly the
mode that was asked for, whatever the umask, and if root creates it, the owner of the directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import NoReturn

from ccagent.errors import NotPermittedError

_DIRECTORY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATING = os.O_CREAT | os.O_EXCL | os.O_TRUNC
_MOST_LINKS = 40
_ATTEMPTS = 10


def open_private(path: str, flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o600) -> int:
    """Open or create a file and return its descriptor, which does not block.

    Raises OSError, and NotPermittedError for a file that another user may have put there.
    """
    directory = open_directory(os.path.dirname(path) or ".")
    try:
        return open_private_at(directory, path, flags, mode)
    finally:
        os.close(directory)


def open_private_at(directory: int, path: str, flags: int, mode: int = 0o600) -> int:
    """Open or create the last component of `path` in an open directory. See `open_private`."""
    name = os.path.basename(path)
    for _ in range(_ATTEMPTS):
        if not flags & os.O_EXCL:
            with contextlib.suppress(FileNotFoundError):
                return _open_existing(directory, name, path, flags)
        if not flags & os.O_CREAT:
            raise _os_error(errno.ENOENT, path)
        try:
            return _create(directory, name, path, flags, mode)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
    raise NotPermittedError(f"{path}: another process creates and removes it all the time")


def check_file(path: str) -> bool:
    """Return whether a file exists, without opening it.

    Raises OSError, and NotPermittedError for a file that another user may have put there.
    """
    directory = open_directory(os.path.dirname(path) or ".")
    try:
        status = os.lstat(os.path.basename(path), dir_fd=directory)
        _check_file(status, os.fstat(directory), path)
    except FileNotFoundError:
        return False
    finally:
        os.close(directory)
    return True


def open_trusted(path: str) -> int:
    """Open a file to read, through links of trusted users only; return its descriptor.

    The caller checks what was opened: the open waits for no writer of a pipe. Raises OSError, and
    NotPermittedError for a link of another user.
    """
    place = path
    for _ in range(_MOST_LINKS):
        directory = open_directory(os.path.dirname(place) or ".")
        try:
            return os.open(os.path.basename(place), os.O_RDONLY | _FILE, dir_fd=directory)
        except OSError as error:
            if error.errno != errno.ELOOP:
                _raise_named(error, path)
            target = _read_link(directory, os.path.basename(place), path)
        finally:
            os.close(directory)
        place = os.path.join(os.path.dirname(place), target)
    raise _os_error(errno.ELOOP, path)


def replace_file(path: str, content: bytes, mode: int = 0o600) -> None:
    """Write a file, whole or not at all. An old file, or a link of that name, is replaced.

    Raises OSError, and NotPermittedError for a link on the way to it.
    """
    directory = open_directory(os.path.dirname(path) or ".")
    try:
        name = f".{os.path.basename(path)[:200]}.{os.urandom(8).hex()}"
        shown = os.path.join(os.path.dirname(path), name)
        descriptor = _create(directory, name, shown, os.O_WRONLY, mode)
        try:
            try:
                write_all(descriptor, content)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(name, os.path.basename(path), src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)
            raise
    finally:
        os.close(directory)


def make_directory(path: str, mode: int = 0o700) -> None:
    """Create a directory, and those above it with mode 755. One that exists stays as it is.

    A directory that root creates takes the owner of its parent. Raises OSError, NotPermittedError.
    """
    path = os.path.abspath(path)
    parent, name = os.path.split(path)
    if not name:
        return
    try:
        directory = open_directory(parent)
    except FileNotFoundError:
        make_directory(parent, 0o755)
        directory = open_directory(parent)
    try:
        make_directory_at(directory, path, mode)
    finally:
        os.close(directory)
    os.close(open_directory(path))


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
        if not os.listdir(made):  # else it was exchanged for another one
            _take_owner(made, directory)
            _set_mode(made, mode)
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
        if links > _MOST_LINKS:
            os.close(current)
            raise _os_error(errno.ELOOP, path)
    return current


def check_directory(path: str) -> str:
    """Return why files in a directory are not safe from other users, or "".

    Neither the directory nor one above it may be writable by others. Where the directory does not
    exist yet, the nearest one above it is checked.
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


def trusted_users() -> set[int]:
    """Return the users whose links are followed: root, our own, and the owner of `/`.

    In a user namespace the last is who owns the system's files there.
    """
    return {0, os.geteuid(), os.stat("/").st_uid}


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content`. Raises OSError."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _components(path: str) -> list[str]:
    """Return the names in a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in {"", "."}]


def _enter(directory: int, name: str, path: str) -> tuple[int, list[str]]:
    """Open one component of a path; for a link return where it starts, and its components."""
    try:
        # O_DIRECTORY has the kernel mount what is to be mounted there on demand.
        return os.open(name, _DIRECTORY | os.O_DIRECTORY, dir_fd=directory), []
    except NotADirectoryError:
        pass
    except OSError as error:
        _raise_named(error, path)
    target = _read_link(directory, name, path)
    start = "/" if target.startswith("/") else "."
    return os.open(start, _DIRECTORY | os.O_DIRECTORY, dir_fd=directory), _components(target)


def _read_link(directory: int, name: str, path: str) -> str:
    """Return where a symbolic link leads. Raises NotPermittedError if it is another user's."""
    link = os.open(name, _DIRECTORY, dir_fd=directory)
    try:
        status = os.fstat(link)
        if not stat.S_ISLNK(status.st_mode):
            raise _os_error(errno.ENOTDIR, path)
        if status.st_uid not in trusted_users():
            raise NotPermittedError(
                f"{path}: {name} is a symbolic link of user {status.st_uid} and is not followed"
            )
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _open_existing(directory: int, name: str, path: str, flags: int) -> int:
    """Open a file that exists, and check that nobody else could have put it there."""
    try:
        descriptor = os.open(name, flags & ~_CREATING | _FILE, dir_fd=directory)
    except OSError as error:
        match error.errno:
            case errno.ELOOP:
                raise NotPermittedError(f"{path}: a symbolic link is not followed") from None
            case errno.ENXIO:  # a pipe without a reader, or a socket
                raise NotPermittedError(f"{path}: not a regular file") from None
            case _:
                _raise_named(error, path)
    try:
        _check_file(os.fstat(descriptor), os.fstat(directory), path)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _create(directory: int, name: str, path: str, flags: int, mode: int) -> int:
    """Create a file that must not exist, with exactly this mode."""
    try:
        descriptor = os.open(
            name, flags | os.O_CREAT | os.O_EXCL | _FILE, mode & 0o700, dir_fd=directory
        )
    except OSError as error:
        _raise_named(error, path)
    try:
        _take_owner(descriptor, directory)
        _set_mode(descriptor, mode)
        _check_file(os.fstat(descriptor), os.fstat(directory), path)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)
        raise
    return descriptor


def _take_owner(descriptor: int, directory: int) -> None:
    """Give what root has created to the owner of the directory, who is to use it."""
    owner = os.fstat(directory)
    if os.fstat(descriptor).st_uid == 0 and owner.st_uid != 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _set_mode(descriptor: int, mode: int) -> None:
    """Set exactly this mode, unless the file system has none of its own (vfat)."""
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, mode)


def _check_file(status: os.stat_result, directory: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotPermittedError(f"{path}: not a regular file")
    if status.st_uid not in {0, os.geteuid(), directory.st_uid}:
        raise NotPermittedError(
            f"{path}: belongs to user {status.st_uid}, neither to root, nor to user "
            f"{os.geteuid()} of this process, nor to the owner of the directory"
        )
    if status.st_nlink > 1:
        # Who may write the directory may have given another file a second name there.
        raise NotPermittedError(f"{path}: a file with {status.st_nlink} names (hard links)")


def _reason_against(path: str, owner: int, *, is_last: bool) -> str:
    """Return why other users can change what is in one directory of a path, or ""."""
    status = os.stat(path)
    mode = status.st_mode
    if not stat.S_ISDIR(mode):
        return f"{path}: not a directory"
    if status.st_uid not in {*trusted_users(), owner}:
        return f"{path}: belongs to user {status.st_uid}, who can replace what is in it"
    by_others = bool(mode & stat.S_IWOTH)
    by_group = bool(mode & stat.S_IWGRP) and not _is_own_group(status.st_gid, owner)
    if mode & stat.S_ISVTX and not is_last:
        return ""  # others can't rename or remove what is not their own
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


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _raise_named(error: OSError, path: str) -> NoReturn:
    """Raise an error of a call with `dir_fd` again, with the whole path."""
    raise _os_error(error.errno or 0, path) from None
