"""The transport `stdout:`. It prints messages raw, or wrapped like Sonar's daemon."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import ConfigurationError, RejectedError, RetryableError
from ccagent.service.private_files import write_all
from ccagent.transports.base import ProbeResult, SinkSettings, Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccagent.records.message import Message


class WrappedMessage(msgspec.Struct):
    """A message in the form of Sonar's daemon. `value` is the envelope, or lines as a string."""

    topic: str
    key: str
    client: str
    value: msgspec.Raw | str


class StdoutTransport(Transport):
    """Prints to standard output: `stdout:` raw, `stdout:wrapped` with topic, key and client.

    Raw envelopes are indented on a terminal; elsewhere each is one line.
    """

    is_network = False

    def __init__(self, settings: SinkSettings) -> None:
        form = settings.url.partition(":")[2]
        if form not in {"", "wrapped"}:
            raise ConfigurationError(f"{settings.url}: there are 'stdout:' and 'stdout:wrapped'")
        self._wrapped = form == "wrapped"

    def probe(self, message: Message) -> ProbeResult:  # noqa: ARG002 - the same for any
        """Return a result without a check: standard output needs no connection."""
        return ProbeResult("standard output")

    def send(self, messages: Sequence[Message]) -> None:
        """Print messages.

        If the reader of a pipe has closed it, the program must end. A one-shot command detects this
        by BrokenPipeError, the daemon by `has_reader`.
        """
        if sys.stdout is None:
            # The process was started without it: its descriptor may be another file.
            raise RejectedError("stdout: it is closed")
        indented = not self._wrapped and sys.stdout.isatty()
        for number, message in enumerate(messages):
            text = self._format(message, indented=indented)
            self.answer = "written to standard output"
            try:
                write_all(sys.stdout.fileno(), text)
            except BrokenPipeError:
                if self.is_one_shot:
                    raise
                return
            except OSError as error:
                raise RetryableError(f"stdout: {error.strerror}", delivered=number) from error

    def _format(self, message: Message, *, indented: bool) -> bytes:
        """Return the text of a message."""
        body = message.body
        if self._wrapped:
            wrapped = WrappedMessage(
                topic=message.topic,
                key=message.node,
                client=f"{message.cluster}/{message.node}",
                value=msgspec.Raw(body) if message.format == "sonar" else body.decode(),
            )
            return msgspec.json.encode(wrapped) + b"\n"
        if message.format == "line":
            return body
        return (msgspec.json.format(body, indent=2) if indented else body) + b"\n"


def has_reader() -> bool:
    """Return False if standard output is a pipe without a reader."""
    if sys.stdout is None:
        return True
    import select

    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # poll always reports errors
    return not any(event & select.POLLERR for _, event in poll.poll(0))
