"""Loading, pinning and unloading of the programs, as root; their bpffs, and the lock for both.

`version` is created last and removed first. Files without `version` are remains of a killed load;
the next load or unload removes them.
"""

from __future__ import annotations

import ctypes
import fcntl
import grp
import os
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import CcagentError, NotHereError, NotPermittedError, ProgramError, raise_for
from ccagent.machine.bpf import io_loading, pins, process_records
from ccagent.machine.bpf.libbpf import BTF, LIBRARIES, Libbpf, Object, check_kernel
from ccagent.machine.bpf.status import TASKS_ALONE, TIMED, Objects, objects
from ccagent.machine.node import Node
from ccagent.machine.procfs.mountinfo import MOUNTINFO, Mount, parse_mountinfo

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from ccagent.machine.bpf.io_loading import IoOptions


SOURCE = "ccagent"
"""Source of ccagent's mounts. Mounts with another source are never unmounted."""

_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_DETACH = 2  # works also with open files


def mount_of(directory: str) -> Mount | None:
    """Return the mount of a directory; None if the directory does not exist.

    Raise UnparsableError if the kernel's table of mounts has another format.
    """
    try:
        device = os.stat(directory).st_dev
        with open(f"/{MOUNTINFO}", "rb") as file:
            content = file.read()
    except OSError:
        return None
    number = f"{os.major(device)}:{os.minor(device)}"
    return next(
        (each for each in reversed(parse_mountinfo(content)) if each.device == number), None
    )


def _bpffs_of(directory: str) -> Mount | None:
    """Return the bpffs of a directory; None in another file system. Raise as `mount_of` does."""
    mount = mount_of(directory)
    return mount if mount is not None and mount.type == "bpf" else None


def mount_bpffs(directory: str) -> None:
    """Mount a bpffs with mode 0755. Raise the errors of `_call`."""
    _call(
        "mount",
        SOURCE.encode(),
        os.fsencode(directory),
        b"bpf",
        ctypes.c_ulong(_NOSUID_NODEV_NOEXEC),
        b"mode=0755",
        what=f"{directory}: mounting a bpffs there",
    )


def unmount(directory: str) -> None:
    """Unmount the file system on a directory. Raise the errors of `_call`."""
    _call("umount2", os.fsencode(directory), _DETACH, what=f"{directory}: unmounting it")


def _call(function: str, *arguments: object, what: str) -> None:
    """Call a function of libc.

    Raise NotPermittedError without privileges, NotHereError if the kernel has no bpffs, else
    ProgramError if the call fails.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments) == 0:
        return
    code = ctypes.get_errno()
    error: type[CcagentError] = {1: NotPermittedError, 13: NotPermittedError, 19: NotHereError}.get(
        code, ProgramError
    )
    raise error(f"{what}: {os.strerror(code)}")


LOCK = "/run/ccagent-kernel.lock"


@contextmanager
def alone(path: str = LOCK) -> Generator[None]:
    """Hold the lock, and remove its file afterwards.

    Only root can open the file: who can open a file can hold its lock without limit.

    Raise NotPermittedError without root, or an error of Node.read.
    """
    try:
        descriptor = _open_locked(path)
    except PermissionError as error:
        raise NotPermittedError(f"{path}: only root can load and unload") from error
    except OSError as error:
        raise_for(path.lstrip("/"), error)
    try:
        yield
    finally:
        os.unlink(path)
        os.close(descriptor)


def _open_locked(path: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            # If the previous holder has removed the file, this lock excludes nobody: open again.
            if os.fstat(descriptor).st_ino == os.stat(path).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)


_KEYS = 16384
_KEYS_PER_CPU = 256
"""An LRU map assigns entries to CPUs in batches of 128. With fewer entries it evicts too early."""


class Loaded(NamedTuple):
    """Result of a load.

    complaint: reason for which ended processes are not counted; "" if they are counted.
    io_version: "" unless the programs for I/O were requested. left_out: reasons by value of I/O
    that is not counted.
    """

    changed: bool
    version: str
    complaint: str
    io_version: str = ""
    left_out: Mapping[str, str] = MappingProxyType({})


def default_group() -> int:
    """Return the id of the default group of readers."""
    try:
        return grp.getgrnam(pins.GROUP).gr_gid
    except KeyError:
        return 0


def load(
    directory: str = pins.DIRECTORY,
    *,
    mode: int = pins.MODE,
    group: int | None = None,
    programs: Objects | None = None,
    btf: str = BTF,
    libraries: tuple[str, ...] = LIBRARIES,
    io: IoOptions | None = None,
) -> Loaded:
    """Load and pin the programs. If this version is pinned already, only set mode and group.

    io: also load the programs for I/O; None leaves them unchanged. Raise NotHereError if libbpf,
    BTF or a feature of the kernel is missing, NotPermittedError without privileges, ProgramError if
    the kernel refuses a program, UnparsableError if the records have another layout. After an error
    nothing stays pinned; but if only the programs for I/O fail, `tasks` and `ended` stay.
    """
    programs = programs or objects()
    group = default_group() if group is None else group
    check_kernel(btf)
    library = Libbpf(libraries)
    with alone():
        done = _load_processes(library, programs, directory, mode, group)
        if io is None:
            _permit(directory, (pins.IO, pins.NETWORK), mode, group)
            return done
        changed, left_out = _load_io(library, programs, directory, io)
        _permit(directory, (pins.IO, pins.NETWORK), mode, group)
        return done._replace(
            changed=done.changed or changed,
            io_version=pins.read_version(directory, pins.IO_VERSION),
            left_out=left_out,
        )


def _load_processes(
    library: Libbpf, programs: Objects, directory: str, mode: int, group: int
) -> Loaded:
    """Load `tasks` and `ended`, unless this version is loaded."""
    names = (pins.TASKS, pins.ENDED)
    is_complete = all(os.path.lexists(path) for path in pins.paths(directory))
    if is_complete and pins.read_version(directory) == programs.version:
        _permit(directory, names, mode, group)
        return Loaded(changed=False, version=programs.version, complaint="")
    _remove_pins(directory)
    is_ours = _prepare(directory)
    try:
        _pin_tasks(library, programs.tasks, directory)
        complaint = _pin_ended(library, programs.ended, directory)
        _permit(directory, names, mode, group)
        version = programs.version + (TASKS_ALONE if complaint else "")
        os.symlink(version, os.path.join(directory, pins.VERSION))
    except BaseException as error:
        _remove_pins(directory)
        if is_ours:
            _remove_directory(directory)
        if isinstance(error, OSError):
            raise_for(directory.lstrip("/"), error)
        raise
    return Loaded(changed=True, version=version, complaint=complaint)


def unload(directory: str = pins.DIRECTORY) -> bool:
    """Remove everything that a load created. Return whether anything existed.

    Raise NotPermittedError without privileges, UnparsableError if a file can't be removed.
    """
    with alone():
        removed = _remove_io(directory)
        removed = _remove_pins(directory) or removed
        return _remove_directory(directory) or removed


def _pin_tasks(library: Libbpf, content: bytes, directory: str) -> None:
    path = os.path.join(directory, pins.TASKS)
    with Object(library, "tasks", content) as programs:
        programs.load()
        programs.pin(programs.attach_iterator("tasks"), path)
    # The first reading looks up the CPUs' counters, and must not run concurrently with another.
    node = Node(hostname="localhost", cluster="local")
    process_records.parse_header(node.read(path.lstrip("/"), process_records.LARGEST_READING))


def _pin_ended(library: Libbpf, content: bytes, directory: str) -> str:
    """Load the counters of ended processes. Return the reason of a refusal, else ""."""
    keys = max(_KEYS, _KEYS_PER_CPU * library.possible_cpus())
    try:
        with Object(library, "ended", content) as programs:
            programs.set_entries("ended", keys)
            programs.set_entries("leaving", keys)
            programs.load()
            io_loading.put_job_numbers(programs)
            # All programs are attached before the first is pinned: after an error none is pinned.
            links = {
                pins.ENDED: programs.attach_iterator("read_ended", over="ended"),
                pins.ON_EXIT: programs.attach("on_exit"),
                pins.ON_FREE: programs.attach("on_free"),
                pins.ON_FORK: programs.attach("on_fork"),
            }
            for name, link in links.items():
                programs.pin(link, os.path.join(directory, name))
    except CcagentError as error:
        for name in (pins.ENDED, pins.ON_EXIT, pins.ON_FREE, pins.ON_FORK):
            with suppress(OSError):
                os.unlink(os.path.join(directory, name))
        return str(error)
    return ""


def _load_io(
    library: Libbpf, programs: Objects, directory: str, options: IoOptions
) -> tuple[bool, dict[str, str]]:
    """Load the programs for I/O, unless this version is loaded.

    Return whether they were loaded, and reasons by value that is not counted.
    """
    version = programs.io_version + (TIMED if options.has_time else "")
    if pins.read_version(directory, pins.IO_VERSION) == version:
        return False, {}
    _remove_io(directory)
    left_out = io_loading.load_io(library, programs.io, directory, options)
    try:
        os.symlink(version, os.path.join(directory, pins.IO_VERSION))
    except OSError as error:
        _remove_io(directory)
        raise_for(directory.lstrip("/"), error)
    return True, left_out


def _remove_io(directory: str) -> bool:
    """Remove the programs for I/O. Return whether any existed."""
    if _bpffs_of(directory) is None:
        return False
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, pins.IO_VERSION))
    return io_loading.remove_io(directory)


def unload_io(directory: str = pins.DIRECTORY) -> bool:
    """Remove only the programs for I/O. Return whether any existed. Raise as `unload` does."""
    with alone():
        return _remove_io(directory)


def _permit(directory: str, names: tuple[str, ...], mode: int, group: int) -> None:
    for name in names:
        path = os.path.join(directory, name)
        with suppress(FileNotFoundError):
            os.chown(path, 0, group)
            os.chmod(path, mode)


def _prepare(directory: str) -> bool:
    """Create a directory in a bpffs. Return whether ccagent created it or its mount."""
    try:
        os.mkdir(directory)
        os.chmod(directory, 0o755)  # noqa: S103 - all may enter; the files limit who may read
        is_new = True
    except FileExistsError:
        is_new = False
    except OSError as error:
        hint = " (mount -t bpf bpf /sys/fs/bpf)" if directory.startswith("/sys/fs/bpf/") else ""
        try:
            raise_for(directory.lstrip("/"), error)
        except CcagentError as known:
            raise type(known)(f"{known}{hint}") from error
    if (mount := _bpffs_of(directory)) is not None:
        return is_new or _is_our_mount(directory, mount)
    if not is_new and (os.listdir(directory) or os.stat(directory).st_uid != 0):
        raise ProgramError(f"{directory}: neither an empty directory of root nor in a bpffs")
    try:
        mount_bpffs(directory)
    except BaseException:
        if is_new:
            os.rmdir(directory)
        raise
    return True


def _remove_pins(directory: str) -> bool:
    if _bpffs_of(directory) is None:
        return False
    removed = False
    for path in pins.paths(directory):
        try:
            os.unlink(path)
            removed = True
        except FileNotFoundError:
            continue
        except OSError as error:
            raise_for(path.lstrip("/"), error)
    return removed


def _remove_directory(directory: str) -> bool:
    """Unmount ccagent's bpffs, and remove the directory if it is empty. Return whether removed."""
    mount = _bpffs_of(directory)
    if mount is None:
        return False
    if _is_our_mount(directory, mount):
        unmount(directory)
    elif os.path.realpath(directory) == mount.point:
        return False
    try:
        os.rmdir(directory)
    except OSError:
        return False
    return True


def _is_our_mount(directory: str, mount: Mount) -> bool:
    return os.path.realpath(directory) == mount.point and mount.source == SOURCE
