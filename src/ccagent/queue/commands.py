"""The commands `ccagent outbox`: show, send, retry and drop messages queued on disk.

They work beside a running daemon: files are read without locks, states are overwritten in place.
"""

from __future__ import annotations

import contextlib
import os
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import msgspec

from ccagent.errors import ConfigurationError, QueueError
from ccagent.log import logger
from ccagent.machine.clock import Clock, timestamp
from ccagent.queue.queue import OLD_SUFFIX, SUFFIX, Queue, find_old_file, make_directory_name
from ccagent.queue.record_log import FILE_ERRORS, describe_error
from ccagent.queue.segment import DEAD, DONE, WAITING, delete_finished, find_owner, mark_done
from ccagent.queue.segment_directory import read_files, resume
from ccagent.queue.sender import Sender
from ccagent.transports.base import build_transport

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from ccagent.config.configuration import Configuration
    from ccagent.queue.segment import QueueEntry, SegmentContent, StoredMessage

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


class StoredLetter(NamedTuple):
    """A dead letter in a file, or a message of another sink or machine.

    path: of the file. sink: for which the message was queued.
    """

    path: str
    message: StoredMessage
    reason: str
    sink: str


class DeadLetterSelection(NamedTuple):
    """A filter for dead letters: sinks (empty: all) and a text in the reason."""

    sinks: tuple[str, ...] = ()
    reason: str = ""

    def select(self, letters: Iterable[StoredLetter]) -> list[StoredLetter]:
        """Return the dead letters that the filter selects."""
        return [each for each in letters if self.reason.lower() in each.reason.lower()]


def list_queues(configuration: Configuration) -> list[BacklogRow]:
    """Return the queues of all sinks, each with its first dead letters."""
    rows: list[BacklogRow] = []
    for sink in _list_sinks(configuration):
        try:
            rows.append(_summarise(configuration, sink))
        except QueueError as error:
            rows.append(BacklogRow(sink, error=str(error)))
    return rows


def flush(configuration: Configuration) -> bool:
    """Send the backlog of the configured sinks. Return whether all queues are empty."""
    is_sent = True
    for sink in _list_sinks(configuration):
        if sink not in configuration.sinks:
            continue
        transport = build_transport(configuration.sinks[sink])
        transport.is_one_shot = True
        queue = Queue(sink, configuration.outbox)
        error, sender = queue.error, Sender(sink, queue, transport)
        with contextlib.closing(sender):
            is_empty = sender.send_all()
        if not is_empty and sender.counters.last_error:
            error = error or f"not all messages were sent: {sender.counters.last_error}"
        if error:
            logger.error("sink %s: %s", sink, error)
        is_sent &= is_empty and not error
    return is_sent


def retry(configuration: Configuration, selection: DeadLetterSelection) -> int:
    """Queue dead letters again and return their number. Raise QueueError if a file fails.

    A message goes to the sink for which it was queued; if that is not configured any more, to the
    sink in whose directory its file lies.
    """
    count = 0
    for name in _select_sinks(configuration, selection):
        letters = selection.select(_list_letters(name, _read_queue(configuration, name)))
        undecodable = sum(letter.message.entry is None for letter in letters)
        for sink in dict.fromkeys(letter.sink for letter in letters):
            target = sink if sink in configuration.sinks else name
            queue = Queue(target, msgspec.structs.replace(configuration.outbox, memory=False))
            with contextlib.closing(queue), _naming_errors(queue.path):
                for letter in letters:
                    if letter.sink == sink and letter.message.entry is not None:
                        _queue_again(queue, letter.message.entry)
                        mark_done(letter.path, [letter.message.position])
                        count += 1
                _delete_finished(name, letters)
        if undecodable:
            logger.warning(
                "sink %s: %d undecodable dead letters can't be sent again; "
                "`ccagent outbox drop --reason version` deletes them",
                name,
                undecodable,
            )
    return count


def _queue_again(queue: Queue, entry: QueueEntry) -> None:
    """Queue a dead letter. Its age starts at 0; otherwise it could expire at once."""
    if queue.failure:
        raise QueueError(f"outbox {queue.path}: {queue.failure}")
    queue.append(msgspec.structs.replace(entry, clock=queue.now().clock, reason=""))


def drop(configuration: Configuration, selection: DeadLetterSelection, *, is_whole: bool) -> int:
    """Delete dead letters, with `is_whole` also queued messages. Return their number."""
    count = 0
    for sink in _select_sinks(configuration, selection):
        files = _read_queue(configuration, sink)
        letters = selection.select(_list_letters(sink, files, is_whole=is_whole))
        with _naming_errors(_find_directory(configuration, sink)):
            for path, group in groupby(letters, lambda letter: letter.path):
                mark_done(path, [letter.message.position for letter in group])
            _delete_finished(sink, letters)
        count += len(letters)
    return count


def _summarise(configuration: Configuration, sink: str) -> BacklogRow:
    """Return the line of a queue, with its first dead letters and its damaged files."""
    files = _read_queue(configuration, sink)
    queued = (message for each in files.values() if not each.foreign for message in each.messages)
    waiting = [message for message in queued if message.state == WAITING]
    letters = _list_letters(sink, files)
    old = find_old_file(_find_directory(configuration, sink))
    details = [_describe(letter) for letter in letters[:_SHOWN]]
    if os.path.lexists(old):
        details.insert(0, f"{old}: waits for its conversion: start ccagent")
    if len(letters) > _SHOWN:
        details.append(f"... and {len(letters) - _SHOWN} more dead letters")
    for path, content in files.items():
        if content.damaged:
            details.append(f"{path}: {content.damaged_bytes} bytes are damaged")
    moment, newest, clock = None, 0.0, Clock()
    for content in files.values():
        moment, newest = content.header and content.header.moment, content.newest
    now = resume(moment, newest, clock.boot_id(), clock.uptime()).clock
    clocks = [message.entry.clock for message in waiting if message.entry is not None]
    return BacklogRow(
        sink,
        len(waiting),
        sum(message.size for message in waiting),
        max(0.0, now - min(clocks, default=now)),
        len(letters),
        max((each.header.dropped for each in files.values() if each.header), default=0),
        tuple(details),
    )


def _list_letters(
    sink: str, files: dict[str, SegmentContent], *, is_whole: bool = False
) -> list[StoredLetter]:
    """Return the dead letters of a sink, and all messages of other sinks and machines.

    is_whole: return queued messages, too.
    """
    letters: list[StoredLetter] = []
    for path, content in files.items():
        owner = content.header.owner.sink if content.header is not None else sink
        for message in content.messages:
            is_selected = is_whole or message.state == DEAD or content.foreign
            if is_selected and message.state != DONE:
                reason = content.foreign or (message.reason if message.state == DEAD else "")
                letters.append(StoredLetter(path, message, reason, owner))
    return letters


def _delete_finished(sink: str, letters: list[StoredLetter]) -> None:
    """Delete the files of messages in which all are done."""
    owner = find_owner(sink)
    for path in dict.fromkeys(letter.path for letter in letters):
        delete_finished(path, owner)


def _describe(letter: StoredLetter) -> str:
    """Return the line that shows a dead letter."""
    entry = letter.message.entry
    if entry is None:
        return f"{letter.message.size} bytes: {letter.reason}"
    message, moment = entry.message, entry.rejected or entry.stored
    size = len(message.body)
    return f"{timestamp(moment)} {message.kind} of {message.node}, {size} bytes: {letter.reason}"


def _find_directory(configuration: Configuration, sink: str) -> str:
    """Return the directory of a sink's queue."""
    return os.path.join(configuration.outbox.directory, make_directory_name(sink))


def _read_queue(configuration: Configuration, sink: str) -> dict[str, SegmentContent]:
    """Read the files of a sink's queue: content by path. Raise QueueError."""
    path = _find_directory(configuration, sink)
    with _naming_errors(path):
        return read_files(path, find_owner(sink))


@contextlib.contextmanager
def _naming_errors(path: str) -> Generator[None]:
    """Raise QueueError with the directory and the reason if a file fails."""
    try:
        yield
    except FILE_ERRORS as error:
        raise QueueError(f"outbox {path}: {describe_error(error)}") from error


def _list_sinks(configuration: Configuration) -> list[str]:
    """Return the names of the sinks that have a queue on disk.

    Raise ConfigurationError if no directory is configured.
    """
    directory = configuration.outbox.directory
    if not directory:
        raise ConfigurationError(f"{configuration.place}: outbox.directory: not set")
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigurationError(f"outbox.directory: {directory}: {error.strerror}") from error
    suffixes = (SUFFIX, OLD_SUFFIX)
    return sorted({unquote(name.rpartition(".")[0]) for name in names if name.endswith(suffixes)})


def _select_sinks(configuration: Configuration, selection: DeadLetterSelection) -> list[str]:
    """Return the sinks of the selected queues. Raise ConfigurationError for an unknown sink."""
    queues = _list_sinks(configuration)
    for sink in selection.sinks:
        if sink not in queues:
            raise ConfigurationError(
                f"--sink {sink}: has no queue; existing queues: {', '.join(queues)}"
            )
    return list(selection.sinks) or queues
