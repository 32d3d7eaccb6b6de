"""Every error that ccagent raises.

CcagentError
├── ConfigurationError      the configuration can't be used: exit status 2
├── NotHereError            no such file, device or program on this machine: debug
├── VanishedError           the process went away while it was read: silent
├── NotPermittedError       a field is left out, said once
├── UnparsableError         text that can't be understood: an entry in the envelope's errors
│   ├── LineError           line protocol that isn't: line, column, what was expected
│   └── ShortageError       nothing can be opened, for want of descriptors
├── ProgramError            a command failed, took too long or printed too much
├── LockedError             another ccagent holds the lock
├── QueueError              the file of a queue can't be used
├── EncodingError           a record that its format can't express
└── TransportError          a message was not taken
    ├── RetryableError      later it may be
    └── RejectedError       it never will be
        └── TooLargeError   it may be in smaller parts
"""


class CcagentError(Exception):
    """The root of the tree."""


class ConfigurationError(CcagentError):
    """A configuration, option or URL that can't be used: names file, key and reason.

    `problems` are all that were found, a sentence each.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class NotHereError(CcagentError):
    """What was asked for does not exist on this machine."""


class VanishedError(CcagentError):
    """A process ended between being listed and being read."""


class NotPermittedError(CcagentError):
    """The kernel does not let this user read what was asked for."""


class UnparsableError(CcagentError):
    """Text that does not have its documented form."""


class ShortageError(UnparsableError):
    """A file can't be opened, since the process or the machine has no descriptors left."""


class ProgramError(CcagentError):
    """A program failed, ran over its time limit or its output limit."""


class LockedError(CcagentError):
    """Another instance holds the lock."""


class QueueError(CcagentError):
    """The file of a queue can't be read or written: names the file and the reason."""


class EncodingError(CcagentError):
    """A record holds what its format can't carry."""


class TransportError(CcagentError):
    """A message was not taken by the other side."""


class RetryableError(TransportError):
    """The message may be sent again later.

    `delivered` counts the leading messages of the batch that were taken before the error. `after`
    is the number of seconds to wait that the receiver asked for, 0 if it asked for none.
    `is_about_message` is true if the receiver is reachable and failed on the first message that it
    did not take, so that others may pass.
    """

    def __init__(
        self,
        message: str,
        *,
        delivered: int = 0,
        after: float = 0.0,
        is_about_message: bool = False,
    ) -> None:
        super().__init__(message)
        self.delivered = delivered
        self.after = after
        self.is_about_message = is_about_message


class RejectedError(TransportError):
    """The message will never be taken: sending it again is pointless.

    `delivered` counts the leading messages of the batch that were taken before this one.
    """

    def __init__(self, message: str, *, delivered: int = 0) -> None:
        super().__init__(message)
        self.delivered = delivered


class TooLargeError(RejectedError):
    """The message is larger than the receiver takes.

    `limit` is the largest body in bytes that the receiver takes, None if it did not say.
    """

    def __init__(self, message: str, *, delivered: int = 0, limit: int | None = None) -> None:
        super().__init__(message, delivered=delivered)
        self.limit = limit
