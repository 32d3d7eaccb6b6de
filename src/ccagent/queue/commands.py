"""The commands `ccagent outbox`: show, send, retry and drop messages queued on disk."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from ccagent.errors import CcagentError, ConfigurationError, QueueError
from ccagent.log import logger
from ccagent.machine.clock import timestamp
from ccagent.queue.files import SUFFIX, make_file_name, open_disk
from ccagent.queue.queue import Queue
from ccagent.queue.sender import Sender
from ccagent.transports.base import build_transport

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from ccagent.config.configuration import Configuration
    from ccagent.queue.database import QueueDatabase
    from ccagent.queue.rows import DeadLetter

_SHOWN = 20


class BacklogRow(NamedTuple):
    """The queue of a sink. age: of its oldest message, in seconds. details: lines of dead letters.

    error: reason if the queue can't be read; the other fields are then 0.
    """

    sink: str
    messages: int = 0
    size: int = 0
    age: float = 0.0
    dead_letters: int = 0
    dropped: int = 0
    details: tuple[str, ...] = ()
    error: str = ""


class DeadLetterSelection(NamedTuple):
    """A filter for dead letters: sinks (empty: all) and a text in the reason."""

    sinks: tuple[str, ...] = ()
    reason: str = ""

    def select(self, letters: Iterable[DeadLetter]) -> list[DeadLetter]:
        """Return the dead letters that the filter selects."""
        return [each for each in letters if self.reason.lower() in each.reason.lower()]


def list_queues(configuration: Configuration) -> list[BacklogRow]:
    """Return the queues of all sinks, each with its first dead letters."""
    rows: list[BacklogRow] = []
    for sink in _list_queues(configuration):
        try:
            with _open_queue(configuration, sink) as database:
                summary, letters = database.summarise(), database.read_dead_letters()
        except QueueError as error:
            rows.append(BacklogRow(sink, error=str(error)))
            continue
        details = [_describe(letter) for letter in letters[:_SHOWN]]
        if len(letters) > _SHOWN:
            details.append(f"... and {len(letters) - _SHOWN} more dead letters")
        rows.append(
            BacklogRow(
                sink,
                summary.messages,
                summary.size,
                summary.age,
                summary.dead_letters,
                summary.dropped,
                tuple(details),
            )
        )
    return rows


def flush(configuration: Configuration) -> bool:
    """Send the backlog of the configured sinks. Return whether all queues are empty."""
    is_sent = True
    for sink in _list_queues(configuration):
        if sink not in configuration.sinks:
            continue
        transport = build_transport(configuration.sinks[sink])
        transport.is_one_shot = True
        queue = Queue(sink, configuration.outbox)
        if queue.error:
            logger.error("sink %s: %s", sink, queue.error)
            is_sent = False
        is_sent &= send_queued(sink, Sender(sink, queue, transport))
    return is_sent


def send_queued(sink: str, sender: Sender) -> bool:
    """Send the backlog once and close the sender. Return whether the queue is empty."""
    try:
        is_sent = sender.send_all()
    finally:
        sender.close()
    if not is_sent and sender.counters.last_error:
        logger.error("sink %s: not all messages were sent: %s", sink, sender.counters.last_error)
    return is_sent


def retry(configuration: Configuration, selection: DeadLetterSelection) -> int:
    """Queue dead letters again and return their number. Raise QueueError if a file fails."""
    count = 0
    for sink in _select_queues(configuration, selection):
        with _open_queue(configuration, sink) as database:
            letters = selection.select(database.read_dead_letters())
            numbers = [letter.number for letter in letters if letter.entry is not None]
            database.retry(numbers)
            count += len(numbers)
            if len(letters) > len(numbers):
                logger.warning(
                    "sink %s: %d damaged dead letters can't be sent again; "
                    "`ccagent outbox drop --reason damaged` deletes them",
                    sink,
                    len(letters) - len(numbers),
                )
    return count


def drop(configuration: Configuration, selection: DeadLetterSelection, *, is_whole: bool) -> int:
    """Delete dead letters, with `is_whole` also queued messages. Return their number."""
    count = 0
    for sink in _select_queues(configuration, selection):
        with _open_queue(configuration, sink) as database:
            numbers = [letter.number for letter in selection.select(database.read_dead_letters())]
            database.drop(numbers)
            count += len(numbers)
            if is_whole:
                count += database.clear()
    return count


def _describe(letter: DeadLetter) -> str:
    """Return the line that shows a dead letter."""
    if letter.entry is None:
        message = f"{letter.size} bytes"
    else:
        message = (
            f"{letter.entry.message.kind} of {letter.entry.message.node}, "
            f"{len(letter.entry.message.body)} bytes"
        )
    return f"{timestamp(letter.rejected)} {message}: {letter.reason}"


@contextlib.contextmanager
def _open_queue(configuration: Configuration, sink: str) -> Generator[QueueDatabase]:
    """Open the queue of a sink. Raise QueueError with the file and the reason."""
    path = os.path.join(_get_directory(configuration), make_file_name(sink))
    database = None
    try:
        database = open_disk(path, configuration.outbox)
        yield database
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        # SQLite reports only "disk I/O error" when the disk is full.
        cause = ": no space left on the device" if _is_full(path) else ""
        raise QueueError(f"outbox {path}: {error}{cause}") from error
    except OSError as error:
        raise QueueError(f"outbox {path}: {error.strerror or error}") from error
    except QueueError:
        raise
    except CcagentError as error:
        raise QueueError(f"outbox {path}: {error}") from error
    finally:
        if database is not None:
            with contextlib.suppress(sqlite3.Error):
                database.close()


def _is_full(path: str) -> bool:
    """Return whether the file system of a file has no free block."""
    try:
        return os.statvfs(os.path.dirname(path)).f_bavail == 0
    except OSError:
        return False


def _get_directory(configuration: Configuration) -> str:
    """Return the configured directory. Raise ConfigurationError if none is configured."""
    directory = configuration.outbox.directory
    if not directory:
        raise ConfigurationError(f"{configuration.place}: outbox.directory: not set")
    return directory


def _list_queues(configuration: Configuration) -> list[str]:
    """Return the names of the sinks that have a queue on disk."""
    directory = _get_directory(configuration)
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError(f"outbox.directory: {directory}: {error.strerror}") from error
    return sorted(unquote(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX))


def _select_queues(configuration: Configuration, selection: DeadLetterSelection) -> list[str]:
    """Return the names of the selected queues. Raise ConfigurationError for an unknown sink."""
    queues = _list_queues(configuration)
    for sink in selection.sinks:
        if sink not in queues:
            raise ConfigurationError(
                f"--sink {sink}: has no queue; existing queues: {', '.join(queues)}"
            )
    return list(selection.sinks) or queues
