"""A durable pull consumer of JetStream, with overlapping requests.

Source: NATS ADR-37 and the JetStream wire API. nats-py's own fetch waits for each batch, and its
CPU cost per message is half as much again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from ccagent.errors import ConfigurationError, RetryableError
from ccagent.log import logger, printable
from ccagent.net.nats_session import NatsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ccagent.net.nats_session import NatsMessage, NatsSession
    from ccagent.stores.metrics.commit import MessageCommit
    from ccagent.stores.metrics.log_writer import StoreLogError
    from ccagent.stores.metrics.settings import SubscriptionSettings

_BATCH = 500
_SECONDS = 30
_ASK_AGAIN = 35.0
_NANOSECONDS = 10**9
_ACK = b"+ACK"
_MOST_PENDING = 20_000
_ENDED, _NOBODY = {"100", "404", "408"}, "503"
"""Statuses of requests that ended (time, no messages), and of a lost consumer."""


class _Refusal(msgspec.Struct):
    description: str = ""


class _Answer(msgspec.Struct):
    error: _Refusal | None = None


class PullConsumer:
    """Requests messages before the previous batch is used up, and acknowledges stored messages."""

    def __init__(
        self,
        session: NatsSession,
        settings: SubscriptionSettings,
        take: Callable[[NatsMessage], Awaitable[bool]],
        commit: MessageCommit,
    ) -> None:
        """Set the settings. take: writes a message, and returns whether it may be acknowledged.

        The session fails if the consumer or its stream no longer exists.
        """
        self._session = session
        self._client = session.client
        self._settings = settings
        self._take = take
        self._commit = commit
        self._inbox = session.client.new_inbox()
        self._asked = 0
        """Number of requested messages that have not arrived."""
        self._pending: list[str] = []
        """Reply subjects of messages waiting for the log."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Create the consumer if it is missing, and request messages. Raise ConfigurationError."""
        one = self._settings
        wanted = {
            "stream_name": one.stream,
            "config": {
                "durable_name": one.durable,
                "filter_subject": one.subject,
                "deliver_policy": "all",
                "ack_policy": "explicit",
                "ack_wait": _SECONDS * _NANOSECONDS,
                "max_ack_pending": _MOST_PENDING,
            },
        }
        subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{one.stream}.{one.durable}"
        answer = await self._client.request(subject, msgspec.json.encode(wanted), timeout=_SECONDS)
        found = msgspec.json.decode(answer.data, type=_Answer)
        if found.error is not None:
            raise ConfigurationError(
                f"stream {one.stream}, consumer {one.durable}: {found.error.description}"
            )
        await self._session.subscribe(self._inbox, self._on_message, messages=0, size=0)
        await self._ask()

    async def _on_message(self, message: NatsMessage) -> None:
        headers = message.headers
        if headers and "Status" in headers and not message.data:
            self._end_request(headers)
        else:
            self._asked -= 1
            # JetStream delivers an unacknowledged message again.
            if await self._take(message) and message.reply:
                if not self._pending:
                    self._commit.wait(self._committed)
                self._pending.append(message.reply)
        if self._asked < _BATCH:
            await self._ask()

    def _end_request(self, headers: dict[str, str]) -> None:
        """Subtract the rest of an ended request. After an error, delay the next request."""
        status, reason = headers["Status"][:3], headers.get("Description", "")
        left = headers.get("Nats-Pending-Messages", "")
        self._asked -= int(left) if left.isdigit() else self._asked
        if status in _ENDED:
            return
        self._asked = max(self._asked, _BATCH)
        one = self._settings
        if status == _NOBODY or "deleted" in reason.lower():
            name = f"stream {one.stream}, consumer {one.durable}"
            self._session.fail(RetryableError(f"{name}: it no longer exists"))
        else:
            logger.warning(
                "stream %s, consumer %s: %s %s; requesting again in %d s",
                one.stream, one.durable, printable(status), printable(reason), _ASK_AGAIN,
            )  # fmt: skip

    async def _ask(self) -> None:
        if self._client.is_closed:
            return
        self._asked = max(0, self._asked) + _BATCH
        request = {"batch": _BATCH, "expires": _SECONDS * _NANOSECONDS}
        one = self._settings
        await self._client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{one.stream}.{one.durable}",
            msgspec.json.encode(request),
            reply=self._inbox,
        )
        if self._timer is not None:
            self._timer.cancel()
        # Repeat the request later, in case a reply was lost.
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_ASK_AGAIN, self._ask_again)

    def _ask_again(self) -> None:
        self._timer = None
        if not self._client.is_closed:
            self._asked = 0
            self._task = asyncio.get_running_loop().create_task(self._ask())

    def _committed(self, problem: StoreLogError | None) -> None:
        pending, self._pending = self._pending, []
        if problem is None and not self._client.is_closed:
            self._task = asyncio.get_running_loop().create_task(self._acknowledge(pending))

    async def _acknowledge(self, replies: list[str]) -> None:
        """Send acknowledgements. JetStream delivers unacknowledged messages again."""
        with suppress(OSError, NatsError):
            for reply in replies:
                await self._client.publish(reply, _ACK)
