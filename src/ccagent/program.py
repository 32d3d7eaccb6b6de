"""Running a program with a time limit and an output limit."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from ccagent.errors import NotHereError, NotPermittedError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin"}
"""What programs get: output must not depend on who started ccagent."""

_GRACE = 1.0
_ERROR_LIMIT = 4096


def run(command: Sequence[str], *, time_limit: float, output_limit: int) -> bytes:
    """Run `command` without a shell and give its standard output. See `Node.run`."""
    return b"".join(stream(command, time_limit=time_limit, output_limit=output_limit))


def stream(
    command: Sequence[str],
    *,
    time_limit: float,
    output_limit: int,
    environment: Mapping[str, str] | None = None,
) -> Iterator[bytes]:
    """Run `command` without a shell and give its standard output as it comes. See `Node.stream`.

    Whoever leaves it early ends the program.
    """
    process = _started(command, environment or {})
    complaint = bytearray()
    finished = False
    try:
        yield from _collect(process, command[0], time_limit, output_limit, complaint)
        finished = True
    finally:
        _end(process, kill=not finished)
    if process.returncode:
        reason = complaint.decode("utf-8", "replace").strip()
        raise ProgramError(
            f"{command[0]}: exit status {process.returncode}: {reason or 'no message'}"
        )


def _started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    name = command[0]
    search = {"PATH": os.environ.get("PATH", ENVIRONMENT["PATH"])}
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**ENVIRONMENT, **search, **environment},
            start_new_session=True,
        )
    except (FileNotFoundError, NotADirectoryError):
        raise NotHereError(f"{name}: no such program") from None
    except PermissionError:
        from shutil import which

        # So it ends too if a directory of PATH can't be looked into, and no other has it.
        if not os.path.dirname(name) and which(name, os.F_OK, search["PATH"]) is None:
            raise NotHereError(f"{name}: no such program") from None
        raise NotPermittedError(f"{name}: not permitted to run it") from None
    except OSError as error:
        raise ProgramError(f"{name}: {error.strerror}") from None


def _collect(
    process: subprocess.Popen[bytes],
    name: str,
    time_limit: float,
    output_limit: int,
    complaint: bytearray,
) -> Iterator[bytes]:
    """Read both pipes to their ends and wait for the program."""
    deadline = time.monotonic() + time_limit
    size = 0
    too_long = ProgramError(f"{name}: not finished after {time_limit:g} s")
    with selectors.PollSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, True)  # type: ignore[arg-type]
        selector.register(process.stderr, selectors.EVENT_READ, False)  # type: ignore[arg-type]
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise too_long
            for key, _ in ready:
                part = os.read(key.fd, 65536)
                if not part:
                    selector.unregister(key.fileobj)
                elif key.data:
                    size += len(part)
                    if size > output_limit:
                        raise ProgramError(f"{name}: printed more than {output_limit} bytes")
                    yield part
                elif len(complaint) < _ERROR_LIMIT:
                    complaint += part
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise too_long from None


def _end(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    """Close the pipes; kill the program with its children if it still runs."""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    if kill:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        # One in uninterruptible sleep can't be killed: it is left, and reaped if it ever ends.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
