"""Names of users, looked up so that a directory service that does not answer stalls nobody."""

from __future__ import annotations

import _thread  # importing `threading` would cost each one-shot command 3 ms
import pwd
import re
import time
from collections import deque
from typing import TYPE_CHECKING

from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

LOCAL = "/etc/passwd"
_REMEMBERED = 10_000
_KNOWN_FOR = 3600.0
_UNKNOWN_FOR = 300.0
_PATIENCE = 3.0
"""Seconds that callers wait for answers, all together."""

_REFILL = 0.1
"""Seconds of patience that come back each second."""

_STUCK_AFTER = 30.0
_MOST_THREADS = 4
"""Threads that may wait for answers that never come."""

_NUMBER = re.compile(r"[0-9]{1,10}")


class UserNames:
    """Names by user id: those of /etc/passwd, else those of the name service. Remembered.

    A thread asks the service. Callers wait for it for a bounded time; then they get the name of
    the last answer, or none. Names are looked up again after an hour, missing ones after five
    minutes.
    """

    def __init__(
        self,
        look_up: Callable[[int], str],
        monotonic: Callable[[], float] = time.monotonic,
        *,
        local: str = LOCAL,
    ) -> None:
        """Take the function that asks the directory service for a name.

        It returns an empty name for an unknown user, and may hang.

        local: path of the file with local users.
        """
        self._look_up = look_up
        self._monotonic = monotonic
        self._local = local
        self._local_names: dict[int, str] = {}
        self._local_until = float("-inf")
        self._known: dict[int, tuple[str, float]] = {}
        self._lock = _thread.allocate_lock()
        self._queue: deque[int] = deque()
        self._asked: dict[int, _thread.LockType] = {}
        self._threads = 0
        self._progress = 0.0
        self._patience, self._counted = _PATIENCE, time.monotonic()
        self._is_slow = False

    def find(self, uid: int) -> str:
        """Return the name of a user; empty if there is none, or none is known in time."""
        known = self._known.get(uid)
        if known is not None and self._monotonic() < known[1]:
            return known[0]
        with self._lock:
            name = self._find_local(uid)
            if name:
                self._remember(uid, name)
                return name
            answered = self._ask(uid)
            patience = self._refill()
        begin = time.monotonic()
        is_answered = answered is not None and answered.acquire(timeout=patience)
        if answered is not None and is_answered:
            answered.release()  # for the next caller that waits for it
        with self._lock:
            self._patience -= time.monotonic() - begin
            if not is_answered and not self._is_slow:
                self._is_slow = True
                logger.warning(
                    "users: the name service does not answer within %g s; users have their last"
                    " known names, else numbers", _PATIENCE,
                )  # fmt: skip
        known = self._known.get(uid, known)
        return "" if known is None else known[0]

    def _find_local(self, uid: int) -> str:
        now = self._monotonic()
        if now >= self._local_until:
            self._local_names, self._local_until = local_users(self._local), now + _UNKNOWN_FOR
        return self._local_names.get(uid, "")

    def _refill(self) -> float:
        """Return how long a caller may wait, in seconds."""
        now = time.monotonic()
        self._patience = min(_PATIENCE, self._patience + _REFILL * (now - self._counted))
        self._counted = now
        return max(0.0, self._patience)

    def _ask(self, uid: int) -> _thread.LockType | None:
        """Queue a user for a thread. Return a lock that is free once the name is known.

        None: no thread can ask.
        """
        answered = self._asked.get(uid)
        if answered is None:
            if len(self._asked) >= _REMEMBERED:
                return None
            answered = self._asked[uid] = _thread.allocate_lock()
            answered.acquire()
            self._queue.append(uid)
        now = time.monotonic()
        is_stuck = now - self._progress > _STUCK_AFTER and self._threads < _MOST_THREADS
        if not self._threads or is_stuck:
            try:
                _thread.start_new_thread(self._work, ())
            except RuntimeError as error:
                logger.debug("users: %s", error)
                return answered if self._threads else None
            self._threads += 1
            self._progress = now
        return answered

    def _work(self) -> None:
        """Ask the service for the users of the queue, until it is empty."""
        while True:
            with self._lock:
                self._progress = time.monotonic()
                if not self._queue:
                    self._threads -= 1
                    self._is_slow &= bool(self._threads)
                    return
                uid = self._queue.popleft()
            try:
                name = self._look_up(uid)
            except Exception as error:  # noqa: BLE001 - callers that wait must get an answer
                logger.debug("users: %d: %s", uid, error)
                name = ""
            with self._lock:
                self._remember(uid, name)
                self._asked.pop(uid).release()

    def _remember(self, uid: int, name: str) -> None:
        """Keep the name of a user; an unknown user keeps the last name."""
        last, _ = self._known.get(uid, ("", 0.0))
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        # A service that is down denies users that it knew.
        name, seconds = (name, _KNOWN_FOR) if name else (last, _UNKNOWN_FOR)
        self._known[uid] = name, self._monotonic() + seconds


def look_up_user(uid: int) -> str:
    """Return a user's name from the name service, which may hang; empty if there is none."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return ""
    # The C library returns bytes; those that are not UTF-8 must not damage an envelope.
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def local_users(path: str = LOCAL) -> dict[int, str]:
    """Return the names in /etc/passwd by user id. Asks no service."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return {}
    found: dict[int, str] = {}
    for line in lines:
        name, _, rest = line.partition(":")
        number = rest.split(":", 2)[1:2]
        if name and number and _NUMBER.fullmatch(number[0]):
            found.setdefault(int(number[0]), name)
    return found
