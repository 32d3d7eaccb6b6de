"""Names of users, looked up so that a directory service that does not answer stalls nobody."""

from __future__ import annotations

import _thread  # threading would cost a one-shot sample its import
import pwd
import time
from collections import deque
from typing import TYPE_CHECKING

from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

_LOCAL = "/etc/passwd"
_REMEMBERED = 10_000
_KNOWN_FOR = 3600.0
_UNKNOWN_FOR = 300.0
_PATIENCE = 3.0
"""Seconds that callers wait for answers, all together; a tenth of the time comes back."""

_REFILL = 0.1
_STUCK_AFTER = 30.0
_MOST_THREADS = 4
"""Threads that may wait for answers that never come."""


class UserNames:
    """Names by user id, from the name service and remembered.

    A thread asks. Callers wait for it a bounded time; then they get the name of before, that of
    /etc/passwd, or none. Names are looked up again after an hour, missing ones after five minutes.
    """

    def __init__(
        self, look_up: Callable[[int], str], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Take who asks the name service and returns an empty name for an unknown user."""
        self._look_up = look_up
        self._monotonic = monotonic
        self._known: dict[int, tuple[str, float]] = {}
        self._lock = _thread.allocate_lock()
        self._queue: deque[int] = deque()
        self._asked: dict[int, _thread.LockType] = {}
        """Locks that are free as soon as the answer is there."""
        self._threads = 0
        self._progress = 0.0
        self._patience, self._counted = _PATIENCE, time.monotonic()
        self._is_slow = False

    def __len__(self) -> int:
        """Return the number of users that are remembered."""
        return len(self._known)

    def find(self, uid: int) -> str:
        """Return the name of a user; empty if there is none, or none is known in time."""
        known = self._known.get(uid)
        if known is not None and self._monotonic() < known[1]:
            return known[0]
        with self._lock:
            answered = self._ask(uid)
            patience = self._refill()
        began = time.monotonic()
        is_answered = answered is not None and answered.acquire(timeout=patience)
        if is_answered and answered is not None:
            answered.release()  # others wait, too
        with self._lock:
            self._patience -= time.monotonic() - began
            if not is_answered and not self._is_slow:
                self._is_slow = True
                logger.warning(
                    "users: the name service does not answer within %g s; names are those of before"
                    " or of %s, else numbers", _PATIENCE, _LOCAL,
                )  # fmt: skip
        known = self._known.get(uid, known)
        if known is not None:
            return known[0]
        return "" if is_answered else local_users().get(uid, "")

    def _refill(self) -> float:
        """Return how long a caller may wait."""
        now = time.monotonic()
        self._patience = min(_PATIENCE, self._patience + _REFILL * (now - self._counted))
        self._counted = now
        return max(0.0, self._patience)

    def _ask(self, uid: int) -> _thread.LockType | None:
        """Have a user looked up; return what is free then, None if nobody can ask."""
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
            except Exception as error:  # noqa: BLE001 - those who wait must get an answer
                logger.debug("users: %d: %s", uid, error)
                name = ""
            with self._lock:
                self._remember(uid, name)
                self._asked.pop(uid).release()

    def _remember(self, uid: int, name: str) -> None:
        now = self._monotonic()
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        # A service that is down denies users whom it knew: their names stay.
        name, seconds = (name, _KNOWN_FOR) if name else (self._last(uid), _UNKNOWN_FOR)
        self._known[uid] = name, now + seconds

    def _last(self, uid: int) -> str:
        known = self._known.get(uid)
        return known[0] if known is not None else ""


def look_up_user(uid: int) -> str:
    """Return a user's name from the name service, which may hang; empty if there is none."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return ""
    # The C library returns bytes; those that are not UTF-8 must not damage an envelope.
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def local_users() -> dict[int, str]:
    """Return the names in /etc/passwd by user id, without asking any service."""
    found: dict[int, str] = {}
    try:
        with open(_LOCAL, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return found
    for line in lines:
        name, _, rest = line.partition(":")
        number = rest.split(":")[1:2]
        if number and number[0].isascii() and number[0].isdigit():
            found.setdefault(int(number[0]), name)
    return found
