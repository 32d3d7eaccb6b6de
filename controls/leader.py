"""The thread that receives and answers requests, and its replacement when it hangs.

One thread does both, because a request costs less than its transfer to another thread. Another
thread watches. If a request exceeds the time limit, the watching thread answers in place of the
hanging thread, and a new thread takes over the connection. The old thread ends when it no longer
hangs.
"""

from __future__ import annotations

import heapq
import os
import select
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from ccagent.controls.messages import (
    Incoming,
    LineReader,
    encode_answer,
    method_of_subject,
    nats_sender,
)
from ccagent.controls.nats_link import connect
from ccagent.controls.policy import RequestSender
from ccagent.errors import ControlError, EncodingError, RetryableError, UnparsableError
from ccagent.log import logger
from ccagent.service.wake_up import WakeUp

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccagent.controls.nats_link import NatsLink
    from ccagent.controls.nats_protocol import Received
    from ccagent.controls.responder import Responder
    from ccagent.controls.settings import ControlsSettings
    from ccagent.controls.signatures import SignatureCheck
    from ccagent.records.line_protocol.lines import Line

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_MOST_DELAYED = 10_000
_MOST_EVENTS = 1000


class Desk:
    """State shared by the threads: pending requests, answers, the connection.

    on_busy: called at the first request after a pause, to start the watching.
    """

    def __init__(
        self,
        settings: ControlsSettings,
        responder: Responder,
        signatures: SignatureCheck | None,
        on_busy: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.responder = responder
        self.signatures = signatures
        self.lock = threading.Lock()
        self.wake_up = WakeUp()
        self.waiting: deque[Incoming] = deque()
        self.answers: deque[tuple[str, Line]] = deque()
        self.events: deque[tuple[str, bytes]] = deque(maxlen=_MOST_EVENTS)
        self.link: NatsLink | None = None
        self.is_connected = threading.Event()
        self.is_closing = False
        self.answered = 0
        self._delayed: list[tuple[float, int, str, Line]] = []
        self._on_busy = on_busy
        self._pause = _FIRST_PAUSE
        self._retry_at = 0.0
        self._must_reconnect = False
        self._poll = select.poll()
        self._reader = LineReader()

    def send_event(self, subject: str, body: bytes) -> None:
        """Queue an event message. Any thread may call this."""
        self.events.append((subject, body))
        self.wake_up.set()

    def serve(self, leader: Leader) -> None:
        """Process requests until the service ends or another thread takes over."""
        while not self.is_closing and not leader.is_deposed:
            try:
                self._turn(leader)
            except RetryableError as error:
                self._lose(error)
            except Exception:  # noqa: BLE001 - nobody foresaw it, and the service goes on
                logger.exception("controls: the thread of requests failed and continues")
                time.sleep(_FIRST_PAUSE)
        if self.is_closing and not leader.is_deposed and self.link is not None:
            self.link.close()
            self.link = None

    def replace(
        self,
        settings: ControlsSettings,
        responder: Responder,
        signatures: SignatureCheck | None,
    ) -> None:
        """Apply another configuration. Reconnect if the settings of the connection differ."""
        with self.lock:
            self._must_reconnect |= _connection_of(settings) != _connection_of(self.settings)
            self.settings, self.responder, self.signatures = settings, responder, signatures
        self.wake_up.set()

    def close(self) -> None:
        """End the threads. They process no more requests."""
        self.is_closing = True
        self.wake_up.set()

    def _turn(self, leader: Leader) -> None:
        self._work(leader)
        if leader.is_deposed:
            return
        self._send()
        if self._must_reconnect:
            self._disconnect()
        link = self.link
        if link is None:
            self._connect()
            link = self.link
            self._poll = select.poll()
            self._poll.register(self.wake_up.descriptor, select.POLLIN)
            if link is not None:
                self._poll.register(link, select.POLLIN)
        ready = self._poll.poll(self._patience())
        if not ready and link is not None:
            link.keep_alive()
        for descriptor, _ in ready:
            if link is None or descriptor != link.fileno():
                self.wake_up.clear()
                continue
            for message in link.receive():
                self._take(message)
            if self.waiting:
                self._on_busy()

    def _patience(self) -> float | None:
        """Return the milliseconds until the next due work; None without any."""
        times: list[float] = []
        if self._delayed:
            times.append(self._delayed[0][0] - time.monotonic())
        if self.link is not None:
            times.append(self.link.seconds_to_ping())
        elif self.settings.url:
            times.append(self._retry_at - time.monotonic())
        return max(0.0, min(times)) * 1000 + 1 if times else None

    def _take(self, message: Received) -> None:
        """Convert a message to requests, and queue them."""
        key, refusal = "", ""
        if self.signatures is not None:
            try:
                key = self.signatures.signer(
                    message.subject, message.headers, message.body, time.time()
                )
            except ControlError as error:
                refusal = str(error)
        sender = nats_sender(
            message.subject, message.headers, key, trusts_info=self.settings.trust_request_info
        )
        only = method_of_subject(message.subject)
        if refusal and not self.responder.admit_forged(sender, refusal):
            return
        for number, line in enumerate(self._reader.read(message.body)):
            if self.responder.is_for_us(line):
                if refusal and number and not self.responder.admit_forged(sender, refusal):
                    return
                self.waiting.append(Incoming(line, message.reply, sender, only, refusal))

    def _work(self, leader: Leader) -> None:
        """Answer the pending requests, one after another."""
        while self.waiting:
            request = self.waiting.popleft()
            leader.begin(request)
            if request.refusal:
                answer = self.responder.reply(request.line, "ERROR", request.refusal)
            else:
                answer = self.responder.answer(request.line, request.sender, request.only)
            if not leader.finish():
                return  # the watching thread has already answered it
            self.post(request, answer)

    def post(self, request: Incoming, answer: Line) -> None:
        """Queue an answer, with a delay if all nodes answer the same request."""
        self.answered += 1
        if not request.reply:
            return
        spread = self.settings.spread.seconds
        if spread and self.responder.is_for_all(request.line):
            if len(self._delayed) < _MOST_DELAYED:
                due = time.monotonic() + spread * random_part()
                heapq.heappush(self._delayed, (due, self.answered, request.reply, answer))
            return
        self.answers.append((request.reply, answer))

    def _send(self) -> None:
        while self._delayed and self._delayed[0][0] <= time.monotonic():
            _, _, reply, answer = heapq.heappop(self._delayed)
            self.answers.append((reply, answer))
        link = self.link
        if link is None:
            self.answers.clear()  # the connection of the sender is closed
            return
        if not self.answers and not self.events:
            return
        while self.answers:
            reply, answer = self.answers.popleft()
            self._publish(link, reply, answer)
        while self.events:
            subject, body = self.events.popleft()
            link.publish(subject, body)
        link.flush()

    def _publish(self, link: NatsLink, reply: str, answer: Line) -> None:
        try:
            link.publish(reply, encode_answer(answer))
        except EncodingError as error:
            logger.debug("answer: %s", error)
        except UnparsableError as error:
            shorter = self.responder.reply(answer, "ERROR", str(error))
            try:
                link.publish(reply, encode_answer(shorter))
            except (EncodingError, UnparsableError) as again:
                logger.debug("answer: %s", again)

    def _connect(self) -> None:
        if not self.settings.url or time.monotonic() < self._retry_at:
            return
        subjects = self.settings.subjects
        self.link = connect(self.settings, subjects, f"control {self.responder.node_name}")
        self._pause = _FIRST_PAUSE
        self.is_connected.set()
        logger.info("controls: connected to %s, listening on %s", self.link.place, subjects)

    def _disconnect(self) -> None:
        with self.lock:
            self._must_reconnect = False
        if self.link is not None:
            self.link.close()
            self.link = None
        self._retry_at = 0.0

    def _lose(self, error: RetryableError) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None
        self.is_connected.clear()
        wait = self._pause * (0.5 + random_part() / 2)
        self._retry_at = time.monotonic() + wait
        self._pause = min(_LONGEST_PAUSE, 2 * self._pause)
        logger.warning(
            "controls: %s; retrying in %.0f s", error, max(1.0, wait), key="controls connection"
        )


class Leader:
    """One thread that processes requests. `take_over` ends its work from another thread."""

    def __init__(self, desk: Desk, number: int) -> None:
        self._desk = desk
        self._lock = threading.Lock()
        self._request: Incoming | None = None
        self._since = 0.0
        self.is_deposed = False
        self._thread = threading.Thread(
            target=desk.serve, args=(self,), name=f"controls-{number}", daemon=True
        )
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Return whether a request is being answered."""
        return self._request is not None

    @property
    def is_alive(self) -> bool:
        """Return whether the thread runs, or hangs."""
        return self._thread.is_alive()

    def begin(self, request: Incoming) -> None:
        """Note the request that is now answered."""
        self._since = time.monotonic()
        self._request = request

    def finish(self) -> bool:
        """Return whether to send the answer: False after the thread was replaced."""
        with self._lock:
            self._request = None
            return not self.is_deposed

    def take_over(self, limit: float) -> Incoming | None:
        """Replace a thread that hangs for longer than `limit` seconds. Return its request."""
        with self._lock:
            request = self._request
            if request is None or time.monotonic() - self._since < limit:
                return None
            self.is_deposed = True
            return request

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread, at most `seconds`."""
        self._thread.join(seconds)


def random_part() -> float:
    """Return a random number from 0 to 1. The module random would need 0.3 MB of memory."""
    return int.from_bytes(os.urandom(4), "little") / 2**32


def _connection_of(settings: ControlsSettings) -> list[object]:
    """Return the settings that determine a connection."""
    keys = (
        "url", "subjects", "user", "password_file", "token_file", "nkey_file", "creds_file",
        "ca_file", "certificate_file", "key_file", "insecure", "allow_cleartext",
    )  # fmt: skip
    return [getattr(settings, key) for key in keys]


def local_sender(uid: int, name: str) -> RequestSender:
    """Return the sender of a request over the local socket."""
    return RequestSender(f"{name} on this node", frozenset(), is_root=uid == 0)
