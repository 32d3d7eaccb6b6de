"""The Unix socket of a running daemon for `ccagent status`, and the status that it sends."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from ccagent.counters import AgentCounters, SinkCounters
from ccagent.errors import NotHereError, NotPermittedError, UnparsableError
from ccagent.log import logger
from ccagent.service.private_directories import check_directory, list_trusted_users, open_directory

if TYPE_CHECKING:
    from collections.abc import Callable


class Status(msgspec.Struct, rename="kebab", kw_only=True):
    """The identity of a daemon, and the counters of its agents and sinks since its start.

    seconds, cpu_seconds: since the start. resident_memory: KB. restarts: of the scheduling loop and
    the status socket, after unforeseen errors. details: reports of agents, by agent.
    """

    version: str
    cluster: str
    node: str
    pid: int
    seconds: float
    cpu_seconds: float
    resident_memory: int
    agents: dict[str, AgentCounters]
    sinks: dict[str, SinkCounters]
    restarts: int = 0
    details: dict[str, dict[str, Any]] = {}

    def json(self) -> bytes:
        """Return the status as JSON."""
        return msgspec.json.encode(self)

    def line(self) -> str:
        """Return the status as one line for the log."""
        parts = [f"{self.seconds:.0f} s, {self.cpu_seconds:.2f} s CPU, {self.resident_memory} KB"]
        if self.restarts:
            parts.append(f"restarted {self.restarts} times")
        for name, agent in self.agents.items():
            parts.append(
                f"agent {name}: {agent.samples} samples, {agent.errors} errors, "
                f"{agent.skipped} skipped, {agent.restarts} restarts, "
                f"{agent.cpu_seconds:.3f} s CPU"
            )
        for name, sink in self.sinks.items():
            parts.append(
                f"sink {name}: {sink.queued} queued, {sink.backlog} backlog, {sink.sent} sent, "
                f"{sink.acknowledged} acknowledged, {sink.retried} retried, "
                f"{sink.rejected} rejected, {sink.dropped} dropped, {sink.restarts} restarts"
            )
        return "; ".join(parts)


_PATIENCE = 2.0
_LARGEST = 1024 * 1024
_MODE = 0o660
_PAUSE = 0.05


class StatusSocket:
    """Sends the state as JSON to each client, one client after the other.

    Only owner and group may connect. If the socket can't be opened, this is logged and the daemon
    works without it. After an error the thread continues with a pause. `restarts` counts unforeseen
    errors.
    """

    pause = 1.0
    """Seconds from an error to the next attempt."""

    def __init__(self, path: str, report: Callable[[], Status]) -> None:
        self._path = path
        self._report = report
        self._socket: socket.socket | None = None
        self._closing = threading.Event()
        self.restarts = 0
        if not os.path.isdir(os.path.dirname(path)):
            logger.debug("status-socket: %s: there is no such directory; no status", path)
            return
        try:
            self._socket = _listen(path)
            self._identity = _identity(path)
        except NotPermittedError as error:
            logger.warning("status-socket: %s; no status", error)
            return
        except OSError as error:
            logger.warning("status-socket: %s: %s; no status", path, error.strerror or error)
            return
        self._thread = threading.Thread(target=self._serve, name="status", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            logger.warning("status-socket: %s: %s; no status", path, error)
            self._socket.close()
            self._socket = None
            self._remove()

    def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._socket is None:
            return
        self._closing.set()
        self._remove()
        # Closing alone would not wake the thread.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(2 * _PATIENCE)
        self._socket.close()

    def _serve(self) -> None:
        assert self._socket is not None  # noqa: S101 - the thread starts after it was made
        while not self._closing.is_set():
            try:
                self._answer(self._socket)
            except OSError as error:
                # For example, no descriptor is free now.
                if not self._closing.is_set():
                    logger.warning("status-socket: %s: %s", self._path, error.strerror or error)
                    self._closing.wait(self.pause)
            except BaseException:  # noqa: BLE001 - the daemon goes on, and so does its status
                self.restarts += 1
                logger.exception("status-socket: %s: an answer failed", self._path)
                self._closing.wait(self.pause)

    def _answer(self, listening: socket.socket) -> None:
        """Answer one client. Raise OSError if the connection can't be accepted."""
        connected, _ = listening.accept()
        with connected:
            connected.settimeout(_PATIENCE)
            answer = self._report().json()
            with contextlib.suppress(OSError):
                connected.sendall(answer)

    def _remove(self) -> None:
        """Remove the socket file, unless another socket has replaced it."""
        with contextlib.suppress(OSError, NotPermittedError):
            if _identity(self._path) == self._identity:
                directory = open_directory(os.path.dirname(self._path))
                try:
                    os.unlink(os.path.basename(self._path), dir_fd=directory)
                finally:
                    os.close(directory)


def read_status(path: str) -> Status:
    """Return the state of a running daemon.

    Raise NotHereError if no daemon listens, NotPermittedError, or UnparsableError for other data.
    """
    content = b""
    try:
        with socket.socket(socket.AF_UNIX) as connected:
            connected.settimeout(_PATIENCE)
            connected.connect(path)
            while len(content) < _LARGEST and (part := connected.recv(65536)):
                content += part
        return msgspec.json.decode(content, type=Status)
    except PermissionError as error:
        raise NotPermittedError(
            f"{path}: only the daemon's user, its group and root may ask"
        ) from error
    except OSError as error:
        raise NotHereError(
            f"{path}: no running daemon answers: {error.strerror or error}"
        ) from error
    except msgspec.MsgspecError as error:
        raise UnparsableError(
            f"{path}: the answer is not from a ccagent of this version: {error}"
        ) from error


def await_status(path: str, seconds: float) -> Status:
    """Return the state of a daemon once a sink has delivered a message, else after `seconds`.

    Raise as `read_status` does if no daemon answers by then.
    """
    deadline = time.monotonic() + seconds
    while True:
        is_over = time.monotonic() >= deadline
        try:
            found = read_status(path)
        except NotHereError:
            if is_over:
                raise
        else:
            if is_over or any(sink.acknowledged for sink in found.sinks.values()):
                return found
        time.sleep(_PAUSE)


def _listen(path: str) -> socket.socket:
    """Return a listening socket. The socket file of a killed daemon is replaced.

    Raise OSError, or NotPermittedError if other users could exchange the directory.
    """
    parent, name = os.path.split(path)
    directory = open_directory(parent)
    made = socket.socket(socket.AF_UNIX)
    try:
        place = path if _is_ours(parent, directory) else f"/proc/self/fd/{directory}/{name}"
        # The file gets the mode of the socket, minus the umask.
        os.fchmod(made.fileno(), _MODE)
        try:
            _bind(made, place)
        except FileExistsError:
            _remove_abandoned(directory, name, place)
            _bind(made, place)
        made.listen(4)
    except BaseException:
        made.close()
        raise
    finally:
        os.close(directory)
    return made


def _is_ours(parent: str, directory: int) -> bool:
    """Return whether no other user can exchange the directory during its use."""
    return os.fstat(directory).st_uid in list_trusted_users() and not check_directory(parent)


def _bind(made: socket.socket, place: str) -> None:
    """Bind a socket. Raise FileExistsError if the name exists, OSError for other failures."""
    previous = os.umask(0)
    try:
        made.bind(place)
    except OSError as error:
        if os.path.lexists(place):
            raise FileExistsError(error.errno, error.strerror, place) from error
        raise
    finally:
        os.umask(previous)


def _remove_abandoned(directory: int, name: str, place: str) -> None:
    """Remove a socket file without a listener. Raise OSError for any other file."""
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISSOCK(status.st_mode):
        raise OSError(0, "a file that is not a socket has this name")
    if status.st_uid not in {*list_trusted_users(), os.fstat(directory).st_uid}:
        raise OSError(0, f"a socket of user {status.st_uid} has this name")
    with socket.socket(socket.AF_UNIX) as other:
        other.settimeout(_PATIENCE)
        try:
            other.connect(place)
        except ConnectionRefusedError:
            os.unlink(name, dir_fd=directory)
            return
    raise OSError(0, "another daemon listens there")


def _identity(path: str) -> tuple[int, int]:
    """Return the identity of a file: device and inode."""
    status = os.lstat(path)
    return status.st_dev, status.st_ino
