"""Safe opening and creation of ccagent's files, also where other users may write.

No symbolic link of another user in the path is followed; see private_directories.py. An existing
file must be a regular file with one name and a trusted owner. A created file has exactly the
requested mode, independent of the umask. If root creates it, it gets the owner of the directory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from ccagent.errors import NotPermittedError
from ccagent.service.private_directories import (
    MOST_LINKS,
    open_directory,
    os_error,
    raise_named,
    read_link,
    set_mode,
    take_owner,
)

_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATING = os.O_CREAT | os.O_EXCL | os.O_TRUNC
_ATTEMPTS = 10


def open_private(path: str, flags: int = os.O_RDWR | os.O_CREAT, mode: int = 0o600) -> int:
    """Open or create a file and return its non-blocking descriptor.

    Raise OSError, or NotPermittedError for a file that another user may have created.
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
            raise os_error(errno.ENOENT, path)
        try:
            return _create(directory, name, path, flags, mode)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
    raise NotPermittedError(f"{path}: another process keeps creating and removing it")


def check_file(path: str) -> bool:
    """Return whether a file exists, without opening it.

    Raise OSError, or NotPermittedError for a file that another user may have created.
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


def make_private(path: str) -> None:
    """Create an empty file. An existing one loses the rights of group and others.

    An existing file is not opened, because closing it would release SQLite's locks. Raise OSError,
    or NotPermittedError for a file that another user may have created.
    """
    if not check_file(path):
        with contextlib.suppress(FileExistsError):
            os.close(open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
            return
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        if mode & 0o077:
            with contextlib.suppress(PermissionError):
                os.chmod(f"/proc/self/fd/{descriptor}", mode & 0o700)
    finally:
        os.close(descriptor)


def open_trusted(path: str) -> int:
    """Open a file for reading, through links of trusted users only. Return its descriptor.

    The caller must check the file type. Opening a pipe does not wait for a writer. Raise OSError,
    or NotPermittedError for a link of another user.
    """
    place = path
    for _ in range(MOST_LINKS):
        directory = open_directory(os.path.dirname(place) or ".")
        try:
            return os.open(os.path.basename(place), os.O_RDONLY | _FILE, dir_fd=directory)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise_named(error, path)
            target = read_link(directory, os.path.basename(place), path)
        finally:
            os.close(directory)
        place = os.path.join(os.path.dirname(place), target)
    raise os_error(errno.ELOOP, path)


def replace_file(path: str, content: bytes, mode: int = 0o600) -> None:
    """Write a file atomically. An existing file or link of this name is replaced.

    Raise OSError, or NotPermittedError for another user's link in the path.
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


def sync_directory(path: str) -> None:
    """Wait until the names of new files are on the disk. Raise OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of `content`, also to a non-blocking pipe or terminal. Raise OSError."""
    rest = memoryview(content)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            import select

            # Another process made it non-blocking. An error would leave a partial line.
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


def _open_existing(directory: int, name: str, path: str, flags: int) -> int:
    """Open an existing file, and check that no other user could have created it."""
    try:
        descriptor = os.open(name, flags & ~_CREATING | _FILE, dir_fd=directory)
    except OSError as error:
        match error.errno:
            case errno.ELOOP:
                raise NotPermittedError(f"{path}: a symbolic link is not followed") from error
            case errno.ENXIO:  # a pipe without a reader, or a socket
                raise NotPermittedError(f"{path}: not a regular file") from error
            case _:
                raise_named(error, path)
    try:
        _check_file(os.fstat(descriptor), os.fstat(directory), path)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _create(directory: int, name: str, path: str, flags: int, mode: int) -> int:
    """Create a file with exactly this mode. It must not exist."""
    try:
        descriptor = os.open(
            name, flags | os.O_CREAT | os.O_EXCL | _FILE, mode & 0o700, dir_fd=directory
        )
    except OSError as error:
        raise_named(error, path)
    try:
        take_owner(descriptor, directory)
        set_mode(descriptor, mode)
        _check_file(os.fstat(descriptor), os.fstat(directory), path)
    except BaseException:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)
        raise
    return descriptor


def _check_file(status: os.stat_result, directory: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NotPermittedError(f"{path}: not a regular file")
    if status.st_uid not in {0, os.geteuid(), directory.st_uid}:
        raise NotPermittedError(
            f"{path}: belongs to user {status.st_uid}, neither to root, nor to user "
            f"{os.geteuid()} of this process, nor to the owner of the directory"
        )
    if status.st_nlink > 1:
        # A user with write permission in the directory may have linked another file into it.
        raise NotPermittedError(f"{path}: a file with {status.st_nlink} names (hard links)")
