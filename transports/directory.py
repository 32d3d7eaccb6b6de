"""`dir:PATH` appends messages to files in the tree that Jobanalyzer reads.

    PATH/yyyy/mm/dd/0+sample-HOST.json      one envelope a line; the date is that of UTC
                    0+sysinfo-HOST.json
                    0+job-slurm.json
                    0+cluzter-slurm.json    (the spelling is the readers')
                    metrics-HOST.line       line protocol

A line is written whole or not at all, by any number of writers: they lock the file (flock) for
the length of one write, and what a full disk cut off is taken back.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from ccagent.errors import ConfigurationError, RetryableError
from ccagent.transports.base import SinkSettings, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.message import Message


class DirectorySettings(SinkSettings):
    """The keys of a sink `dir:`."""

    fsync: Annotated[
        bool, Meta(description="wait for the disk after each message (survives power loss)")
    ] = False


class DirectoryTransport(Transport):
    """Appends to `PATH/yyyy/mm/dd/0+TYPE-HOST.json`, whole lines only, several writers allowed."""

    Settings = DirectorySettings

    def __init__(self, settings: SinkSettings) -> None:
        self._directory = settings.url.partition(":")[2]
        if self._directory.startswith("//"):
            self._directory = self._directory[2:]
        if not self._directory.startswith("/"):
            raise ConfigurationError(f"{settings.url}: an absolute path is needed: dir:/PATH")
        self._fsync = isinstance(settings, DirectorySettings) and settings.fsync

    def send(self, messages: Sequence[Message]) -> None:
        """Append messages. What the file system refuses is a RetryableError."""
        for number, message in enumerate(messages):
            path = os.path.join(self._directory, file_of(message))
            body = message.body if message.body.endswith(b"\n") else message.body + b"\n"
            try:
                self._append(path, body)
            except OSError as error:
                reason = error.strerror or str(error)
                raise RetryableError(f"{path}: {reason}", delivered=number) from None

    def _append(self, path: str, lines: bytes) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o644)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            descriptor = os.open(path, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                # Somebody was cut off in mid-line: it must not spoil ours too.
                lines = b"\n" + lines
            try:
                written = os.write(descriptor, lines)
                while written < len(lines):
                    written += os.write(descriptor, lines[written:])
                if self._fsync:
                    os.fsync(descriptor)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def file_of(message: Message) -> str:
    """Give a message's file, relative to the directory: `2026/01/31/0+sample-c1-1.json`."""
    day = time.strftime("%Y/%m/%d", time.gmtime(message.time))
    if message.format == "line":
        return f"{day}/{message.kind}-{message.node}.line"
    match message.kind:
        case "job":
            return f"{day}/0+job-slurm.json"
        case "cluster":
            return f"{day}/0+cluzter-slurm.json"
        case kind:
            return f"{day}/0+{kind}-{message.node}.json"
