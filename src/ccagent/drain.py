"""Sending what is stored for a sink, batch by batch, one process at a time."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, NamedTuple

from ccagent.counters import SinkCounters
from ccagent.errors import RejectedError, RetryableError
from ccagent.log import logger
from ccagent.spool import MEMORY
from ccagent.store import BATCH

if TYPE_CHECKING:
    from ccagent.store import Store
    from ccagent.transports.base import Transport


class Outcome(NamedTuple):
    """What became of a batch.

    done: how many messages are done with. goes_on: whether to send the next batch at once; with
    none done that means that nothing waits. after: seconds that the sink wants to be left alone.
    """

    done: int
    goes_on: bool
    after: float


class Drain:
    """Takes messages out of a store, oldest first, and hands them to a transport."""

    def __init__(self, name: str, store: Store, transport: Transport) -> None:
        self._name = name
        self._store = store
        self._transport = transport
        self._lock = -1
        self._batch = BATCH
        self.counters = SinkCounters()

    def is_ours(self) -> bool:
        """Tell whether this process may drain; takes the lock if nobody has it."""
        if self._store.path == MEMORY or self._lock >= 0:
            return True
        descriptor = -1
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._store.path + ".lock", flags, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            if descriptor >= 0:
                os.close(descriptor)
            return True  # what can't be written holds nothing: the messages are in memory
        self._lock = descriptor
        return True

    def send_batch(self) -> Outcome:
        """Send the oldest messages."""
        spool, batch = self._store.oldest(self._batch)
        if not batch:
            return Outcome(0, goes_on=True, after=0.0)
        self._batch = min(self._batch * 4, BATCH)
        done, goes_on, reason, after = len(batch), True, "", 0.0
        counters = self.counters
        counters.sent += len(batch)
        try:
            self._transport.send([waiting.message for waiting in batch])
            counters.last_error = ""
        except (RetryableError, ImportError) as raised:
            # A library that can't be loaded may be installed at any moment.
            error = raised if isinstance(raised, RetryableError) else RetryableError(str(raised))
            logger.warning("sink %s: %s; trying again", self._name, error)
            done, goes_on, after = error.delivered, False, error.after
            counters.retried += len(batch) - done
            # One message is enough to see whether the sink is back.
            self._batch = 1
            counters.last_error = str(error)
        except RejectedError as error:
            logger.error("sink %s: a message is refused and set aside: %s", self._name, error)
            done, reason = error.delivered, str(error)
        except Exception as error:  # noqa: BLE001 - a transport may fail in ways of its own
            logger.exception("sink %s: a message can't be sent and is set aside", self._name)
            done, reason = 0, f"{type(error).__name__}: {error}"
        counters.acknowledged += done
        self._store.remove(spool, batch[:done])
        if reason:
            self._store.set_aside(spool, batch[done], reason)
            counters.refused += 1
            counters.last_error = reason
            done += 1
        return Outcome(done, goes_on, after)

    def send_all(self) -> bool:
        """Send everything that waits; False if the sink stopped taking it, or another drains."""
        if not self.is_ours():
            logger.info("sink %s: another process is sending", self._name)
            return False
        while True:
            outcome = self.send_batch()
            if not outcome.goes_on:
                return False
            if not outcome.done:
                return True

    def close(self) -> None:
        """Close transport and store."""
        self._transport.close()
        self._store.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
