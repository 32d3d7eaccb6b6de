"""Running a program with a time limit and an output limit."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import TYPE_CHECKING, NamedTuple

from ccagent.errors import NotHereError, NotPermittedError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin"}
"""Environment of programs. Output must not depend on ccagent's environment."""

_GRACE = 1.0
_ERROR_LIMIT = 4096


class ProgramUser(NamedTuple):
    """The user of a program, with all groups."""

    uid: int
    gid: int
    groups: Sequence[int]


def run(
    command: Sequence[str],
    *,
    time_limit: float,
    output_limit: int,
    stop: int | None = None,
    standard_input: bytes = b"",
    user: ProgramUser | None = None,
) -> bytes:
    """Run `command` without a shell and return its standard output. See `Node.run`."""
    return b"".join(
        stream(
            command,
            time_limit=time_limit,
            output_limit=output_limit,
            stop=stop,
            standard_input=standard_input,
            user=user,
        )
    )


def stream(
    command: Sequence[str],
    *,
    time_limit: float,
    output_limit: int,
    environment: Mapping[str, str] | None = None,
    stop: int | None = None,
    standard_input: bytes = b"",
    user: ProgramUser | None = None,
) -> Iterator[bytes]:
    """Run `command` without a shell and yield its standard output. See `Node.stream`.

    Closing the generator, or making `stop` readable, kills the program.
    """
    process = _start(command, environment or {}, standard_input, user)
    complaint = bytearray()
    finished = False
    try:
        limits = _Limits(command[0], time_limit, output_limit, stop)
        yield from _collect(process, limits, complaint)
        finished = True
    finally:
        _end(process, command, kill=not finished)
    if process.returncode:
        reason = complaint.decode("utf-8", "replace").strip()
        end = describe_end(process.returncode)
        raise ProgramError(f"{command[0]}: {end}: {reason or 'no message'}")


def describe_end(status: int) -> str:
    """Return the description of a return code: `exit status 1`, or for -9 `killed by SIGKILL`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:  # a signal without a name
        return f"killed by signal {-status}"


def _start(
    command: Sequence[str],
    environment: Mapping[str, str],
    standard_input: bytes,
    user: ProgramUser | None,
) -> subprocess.Popen[bytes]:
    name = command[0]
    _refuse_second(command)
    search = {"PATH": os.environ.get("PATH", ENVIRONMENT["PATH"])}
    # A file, not a pipe: the program may print before it has read everything.
    given = _as_file(standard_input) if standard_input else subprocess.DEVNULL
    try:
        return subprocess.Popen(
            command,
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**ENVIRONMENT, **search, **environment},
            start_new_session=True,
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=user.groups if user else None,
            cwd="/" if user else None,
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotHereError(f"{name}: no such program") from error
    except PermissionError as error:
        from shutil import which

        # Also raised if a directory of PATH is not searchable and no other has the program.
        if not os.path.dirname(name) and which(name, os.F_OK, search["PATH"]) is None:
            raise NotHereError(f"{name}: no such program") from error
        raise NotPermittedError(f"{name}: not permitted to run it") from error
    except OSError as error:
        raise ProgramError(f"{name}: {error.strerror}") from error
    finally:
        if given != subprocess.DEVNULL:
            os.close(given)


def _as_file(content: bytes) -> int:
    """Return the descriptor of a file in memory with `content`, at its start."""
    descriptor = os.memfd_create("stdin", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


class _Limits(NamedTuple):
    """name: of the program. time: seconds. output: bytes. stop: kills the program when readable."""

    name: str
    time: float
    output: int
    stop: int | None


def _collect(
    process: subprocess.Popen[bytes], limits: _Limits, complaint: bytearray
) -> Iterator[bytes]:
    """Yield the standard output of the program, and wait for its end."""
    deadline = time.monotonic() + limits.time
    size = 0
    for is_output, part in _parts(process, limits, deadline):
        if is_output:
            size += len(part)
            if size > limits.output:
                raise ProgramError(f"{limits.name}: printed more than {limits.output} bytes")
            yield part
        elif len(complaint) < _ERROR_LIMIT:
            complaint += part
    if not _has_ended(process, deadline - time.monotonic()):
        raise _too_long(limits)


def _parts(
    process: subprocess.Popen[bytes], limits: _Limits, deadline: float
) -> Iterator[tuple[bool, bytes]]:
    """Read both pipes to their ends. Yield each part, and whether it is standard output."""
    with selectors.PollSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, True)  # type: ignore[arg-type]
        selector.register(process.stderr, selectors.EVENT_READ, False)  # type: ignore[arg-type]
        if limits.stop is not None:
            selector.register(limits.stop, selectors.EVENT_READ)
        unread = 2
        while unread:
            # The time limit also applies if output arrives steadily.
            left = deadline - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                raise _too_long(limits)
            for key, _ in ready:
                if key.fd == limits.stop:
                    raise ProgramError(f"{limits.name}: killed: its output is no longer needed")
                part = os.read(key.fd, 65536)
                if part:
                    yield key.data, part
                else:
                    selector.unregister(key.fileobj)
                    unread -= 1


def _too_long(limits: _Limits) -> ProgramError:
    return ProgramError(f"{limits.name}: not finished after {limits.time:g} s")


def _has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of a program for at most some seconds. Return whether it has ended."""
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(process: subprocess.Popen[bytes], command: Sequence[str], *, kill: bool) -> None:
    """Close the pipes. Kill the program with its children if it still runs."""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    if kill:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            # It is in uninterruptible sleep, for example on a hanging file system.
            _unkillable[tuple(command)] = process


_unkillable: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}
"""Programs that could not be killed, by command."""


def _refuse_second(command: Sequence[str]) -> None:
    """Raise ProgramError while an earlier run of the command can't be killed.

    Otherwise each sample would add another hanging process.
    """
    for key, process in tuple(_unkillable.items()):
        if process.poll() is not None:
            _unkillable.pop(key, None)
    process_left = _unkillable.get(tuple(command))
    if process_left is not None:
        raise ProgramError(
            f"{command[0]}: process {process_left.pid} of an earlier run hangs in the kernel;"
            " it is not started again before that has ended"
        )
