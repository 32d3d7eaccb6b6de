"""The tree of ccagent's exceptions.

Errors inside one part, which others never see, are defined beside their users.

CcagentError
├── ConfigurationError      the configuration can't be used: exit status 2
├── NotHereError            no such file, device or program on this machine: debug
├── VanishedError           the process ended while it was read: silent
├── NotPermittedError       a field is omitted, logged once
├── UnparsableError         text of another form: an entry in the envelope's errors
│   ├── LineError           invalid line protocol: line, column, expectation
│   └── ShortageError       no file can be opened, for lack of descriptors
├── ProgramError            a command failed, exceeded its time or printed too much
├── LockedError             another ccagent holds the lock
├── QueueError              the file of a queue can't be used
├── EncodingError           a record that its format cannot express
├── ControlError            a control that can't be read or set: answered with level ERROR
└── TransportError          a message was not accepted
    ├── RetryableError      it may be accepted later
    └── RejectedError       it never will be accepted
        └── TooLargeError   smaller parts of it may be accepted
"""

from __future__ import annotations

import errno
import os
import re
from typing import NoReturn, Self

_KEY = re.compile(r"[\w-]+(?:\.[\w-]+)*")


class CcagentError(Exception):
    """The base class of all exceptions of ccagent."""


class KeyProblem(str):
    """A sentence about a key of a configuration, after the place: `PLACE: KEY: REASON`.

    place: the file, or its line. key: with its tables, such as `sinks.backend.url`. text: all after
    the place.
    """

    __slots__ = ("key", "text")

    key: str
    text: str

    def __new__(cls, place: str, key: str, reason: str, *, text: str = "") -> Self:
        """Return the problem; `text` replaces `KEY: REASON`."""
        text = text or f"{key}: {reason}"
        problem = super().__new__(cls, f"{place}: {text}")
        problem.key, problem.text = key, text
        return problem

    @classmethod
    def of_table(cls, place: str, table: str, sentence: str) -> KeyProblem:
        """Return the problem of a whole table. The sentence begins with the key that it is about.

        table: "" if the sentence begins with the table, too.
        """
        named = _KEY.match(sentence)
        key = ".".join(filter(None, (table, named[0] if named else "")))
        return cls(place, key, "", text=f"{table}: {sentence}" if table else sentence)

    def at(self, place: str) -> KeyProblem:
        """Return the problem with another place."""
        return KeyProblem(place, self.key, "", text=self.text)


class ConfigurationError(CcagentError):
    """A configuration, option or URL that can't be used, with file, key and reason.

    problems: all problems, one sentence each.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class NotHereError(CcagentError):
    """A file, device or program does not exist on this machine."""


class VanishedError(CcagentError):
    """A process ended between listing and reading."""


class NotPermittedError(CcagentError):
    """This user may not read or use a file, device or program."""


class UnparsableError(CcagentError):
    """A text does not have its documented form."""


class ShortageError(UnparsableError):
    """A file can't be opened, because the process or the machine has no free descriptor."""


class ProgramError(CcagentError):
    """A program failed, or exceeded its time limit or output limit."""


class LockedError(CcagentError):
    """Another process of ccagent holds the lock."""


class QueueError(CcagentError):
    """The file of a queue can't be read or written, with file and reason."""


class EncodingError(CcagentError):
    """A record has a value that its format can't express."""


class ControlError(CcagentError):
    """A control can't be read or set: unknown, or refused by the policy or the machine."""


class TransportError(CcagentError):
    """The receiver did not accept a message."""


class RetryableError(TransportError):
    """The message may be sent again later.

    `delivered` counts the leading messages of the batch that were accepted before the error.
    `after` is the number of seconds that the receiver asked to wait, 0 for none.
    `is_about_message` is true if the receiver is reachable and failed on the first message that it
    did not accept. It may accept other messages. `is_busy` is true if the receiver reports that it
    has no room or time now. The message is then not the cause.
    """

    def __init__(
        self,
        message: str,
        *,
        delivered: int = 0,
        after: float = 0.0,
        is_about_message: bool = False,
        is_busy: bool = False,
    ) -> None:
        super().__init__(message)
        self.delivered = delivered
        self.after = after
        self.is_about_message = is_about_message
        self.is_busy = is_busy


class RejectedError(TransportError):
    """The receiver will never accept the message. It is not sent again.

    `delivered` counts the leading messages of the batch that were accepted before this one.
    """

    def __init__(self, message: str, *, delivered: int = 0) -> None:
        super().__init__(message)
        self.delivered = delivered


class TooLargeError(RejectedError):
    """The message is larger than the receiver accepts.

    `limit` is the maximum body in bytes that the receiver accepts; None if unknown.
    """

    def __init__(self, message: str, *, delivered: int = 0, limit: int | None = None) -> None:
        super().__init__(message, delivered=delivered)
        self.limit = limit


_CADENCE = {"cadence", "frequency", "interval", "period"}
"""Other words for the key `every`."""


def nearest(name: str, known: tuple[str, ...] | list[str]) -> str:
    """Return `; did you mean 'x'?`, or the list of known names if none is similar."""
    import difflib

    candidates = difflib.get_close_matches(name.replace("_", "-"), known, n=1, cutoff=0.5)
    if name in _CADENCE and "every" in known:
        candidates = ["every"]
    if candidates:
        return f"; did you mean {candidates[0]!r}?"
    return f"; there are {', '.join(sorted(known))}" if known else ""


def raise_for(path: str, error: OSError | ValueError) -> NoReturn:
    """Raise ccagent's exception for an OSError of `/path`.

    Python raises a ValueError for an impossible path, such as one with a NUL.
    """
    if isinstance(error, ValueError):
        raise UnparsableError(f"/{path!r}: {error}") from error
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR | errno.ENODEV | errno.ENXIO | errno.EOPNOTSUPP:
            kind: type[CcagentError] = NotHereError
        case errno.ESRCH:
            kind = VanishedError
        case errno.EACCES | errno.EPERM:
            kind = NotPermittedError
        case errno.EMFILE | errno.ENFILE:
            kind = ShortageError
        case _:
            kind = UnparsableError
    raise kind(f"/{path}: {os.strerror(error.errno or 0)}") from error
