"""The outbox of a sink: messages wait here, in memory, until the sink has taken them.

Agents put messages in and go on; a thread of the sink's own sends them, oldest first. What a
sink refuses for now is kept and tried again, up to a bound; then the oldest go, and it is said.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from typing import TYPE_CHECKING

from ccagent.errors import RejectedError, RetryableError
from ccagent.log import logger

if TYPE_CHECKING:
    from ccagent.message import Message
    from ccagent.transports.base import SinkSettings, Transport

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_BATCH = 100


class Outbox:
    """Sends messages through one transport from a thread of its own."""

    limit = 64 * 1024 * 1024
    """Bytes that may wait."""

    def __init__(self, name: str, settings: SinkSettings, transport: Transport) -> None:
        self.name = name
        self.settings = settings
        self._transport = transport
        self._waiting: deque[Message] = deque()
        self._bytes = 0
        self._sending = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=f"sink {name}", daemon=True)
        self._thread.start()

    def put(self, message: Message) -> None:
        """Take a message over. Returns at once, whatever the sink does."""
        with self._changed:
            self._waiting.append(message)
            self._bytes += len(message.body)
            dropped = 0
            while self._bytes > self.limit and len(self._waiting) > self._sending + 1:
                # The ones being sent now are at the front: the oldest behind them go.
                oldest = self._waiting[self._sending]
                del self._waiting[self._sending]
                self._bytes -= len(oldest.body)
                dropped += 1
            self._changed.notify_all()
        if dropped:
            logger.error(
                "sink %s: more than %d bytes wait; the oldest are dropped", self.name, self.limit
            )

    @property
    def is_idle(self) -> bool:
        """True when nothing waits."""
        with self._changed:
            return not self._waiting

    def close(self) -> None:
        """Ask the thread to send what waits, once, and to end. Does not wait for it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Wait for the thread to end; say what is lost if it doesn't in time."""
        self._thread.join(max(0.0, seconds))
        with self._changed:
            left = len(self._waiting)
        if left:
            logger.error("sink %s: %d messages could not be sent and are lost", self.name, left)

    def _work(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if not self._waiting:
                    break
                batch = [self._waiting[i] for i in range(min(_BATCH, len(self._waiting)))]
                self._sending = len(batch)
            taken, again = self._send(batch)
            with self._changed:
                for _ in range(taken):
                    self._bytes -= len(self._waiting.popleft().body)
                self._sending = 0
                if not again:
                    pause = _FIRST_PAUSE
                    continue
                if self._closing:
                    break
                self._changed.wait_for(
                    lambda: self._closing,
                    pause * random.uniform(0.5, 1.0),  # noqa: S311 - jitter
                )
            pause = min(pause * 2, _LONGEST_PAUSE)
        self._transport.close()

    def _send(self, batch: list[Message]) -> tuple[int, bool]:
        """Send a batch: how many messages are done with, and whether to pause and try again."""
        try:
            self._transport.send(batch)
        except RetryableError as error:
            logger.warning("sink %s: %s; trying again", self.name, error)
            return error.delivered, True
        except RejectedError as error:
            logger.error("sink %s: a message is refused and dropped: %s", self.name, error)
            return error.delivered + 1, False
        except Exception:  # noqa: BLE001 - a transport may fail in ways of its own
            logger.exception("sink %s: a message can't be sent and is dropped", self.name)
            return 1, False
        return len(batch), False
