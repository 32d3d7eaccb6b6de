"""Calls in separate threads, single, repeated, of files, of libraries: none stalls its caller."""

from __future__ import annotations

import os
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ccagent.errors import CcagentError, ProgramError, raise_for
from ccagent.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """A call that starts at once in a thread. If it never returns, the thread is abandoned.

    name: of the thread. when_done: called after the call. Raise ProgramError if no thread can be
    started.
    """

    def __init__(
        self, function: Callable[[], T], name: str, when_done: Callable[[], None] | None = None
    ) -> None:
        self._function = function
        self._when_done = when_done
        self._result: T
        self._error: BaseException | None = None
        self._done = threading.Event()
        try:
            threading.Thread(target=self._call, name=name, daemon=True).start()
        except RuntimeError as error:
            raise ProgramError(f"{name}: {error}") from error

    @property
    def is_done(self) -> bool:
        """Return whether `result` can be called."""
        return self._done.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, at most `seconds`. Return whether the call is done."""
        return self._done.wait(max(0.0, seconds))

    def result(self) -> T:
        """Return the result of the function, or raise its exception."""
        if self._error is not None:
            raise self._error
        return self._result

    def checked_result(self) -> T:
        """Return the result. Raise ProgramError in place of an unforeseen error."""
        try:
            return self.result()
        except CcagentError:
            raise
        except Exception as error:
            raise ProgramError(f"{type(error).__name__}: {error}") from error

    def _call(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:  # noqa: BLE001 - `result` raises it
            self._error = error
        del self._function  # it may refer to this call
        self._done.set()
        if self._when_done is not None:
            self._when_done()


PATIENCE = 0.1
"""Seconds that a sample waits for a call. A quick call returns in the same sample."""
GRACE = 1.0
"""Seconds allowed for ending a program."""


class RepeatedCall(Generic[T]):
    """One call at a time, started once per time slot of `every` seconds.

    name: name of the call in messages; empty if the caller adds it. every: 0 for each sample.
    """

    def __init__(self, name: str, every: float) -> None:
        self.name = name
        self._every = every
        self._slot: int | None = None
        self._running: BackgroundCall[T] | None = None
        self._results: list[T] = []

    def begin(
        self, now: float, call: Callable[[], T], errors: list[str], *, is_due: bool = False
    ) -> None:
        """Start `call` if `now` is in a new time slot or `is_due` is True.

        now: seconds since 1970.
        """
        slot = int(now // self._every) if self._every else None
        if slot is not None and slot == self._slot and not is_due:
            return
        self._slot = slot
        self._collect(0.0, errors)
        if self._running is not None:
            errors.append(self._message("still running; not started again"))
            return
        try:
            self._running = BackgroundCall(call, self.name or "background call")
        except CcagentError as error:
            errors.append(str(error))

    def result(self, seconds: float, errors: list[str]) -> T | None:
        """Return the newest result not returned before; None without one.

        seconds: time to wait for a running call. Failed calls are in `errors`.
        """
        self._collect(seconds, errors)
        results, self._results = self._results, []
        return results[-1] if results else None

    def is_over(self) -> bool:
        """Wait for a stopping call to end. Return whether it has ended."""
        return self._running is None or self._running.wait(2 * GRACE)

    def _collect(self, seconds: float, errors: list[str]) -> None:
        running = self._running
        if running is None or not running.wait(seconds):
            return
        self._running = None
        try:
            self._results = [running.checked_result()]
        except CcagentError as error:
            errors.append(self._message(str(error)))

    def _message(self, text: str) -> str:
        return f"{self.name}: {text}" if self.name else text


class StopPipe:
    """A descriptor that becomes readable at the end, for programs that run in the background."""

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None

    @property
    def descriptor(self) -> int:
        """The descriptor, opened at first use."""
        if self._ends is None:
            self._ends = os.pipe()
        return self._ends[0]

    def close(self, *calls: RepeatedCall[Any]) -> None:
        """Stop the programs of `calls`, and wait for their end."""
        if self._ends is None:
            return
        end, begin = self._ends
        os.close(begin)
        are_over = [call.is_over() for call in calls]
        if all(are_over):
            os.close(end)  # else a thread may poll the descriptor after its number was reused
        self._ends = None


_MOST_HUNG = 16
"""Maximum number of abandoned threads. Beyond it no job runs."""
_PART = 0.25
"""Maximum share of a job's time for one call."""


class _AbandonedError(BaseException):
    """Ends the thread of a call that exceeded its limit. `except Exception` does not catch it."""


class _Attempt:
    """A run of a job. current: the running call and its start."""

    def __init__(self) -> None:
        self.current: tuple[str, float] | None = None
        self.abandoned = threading.Event()


class LimitedCalls:
    """Runs jobs that make calls, each within a time limit.

    A job runs in a thread. A call that exceeds its limit is abandoned with its thread, and the job
    runs again without it. All jobs skip this call until it has returned.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hung: set[str] = set()
        self._abandoned: list[BackgroundCall[Any]] = []
        self._of_thread = threading.local()

    def run(self, job: Callable[[], T], seconds: float) -> T | None:
        """Return the result of a job, or raise its exception; None if it exceeds its time.

        Raise ProgramError if no thread can be started.
        """
        deadline = time.monotonic() + seconds
        self._abandoned = [running for running in self._abandoned if not running.is_done]
        while len(self._abandoned) < _MOST_HUNG and time.monotonic() < deadline:
            attempt = _Attempt()
            running = BackgroundCall(partial(self._run, job, attempt), "gpu calls")
            if self._is_finished(running, attempt, _PART * seconds, deadline):
                return running.result()
            self._abandoned.append(running)
        return None

    def _run(self, job: Callable[[], T], attempt: _Attempt) -> T:
        self._of_thread.attempt = attempt
        return job()

    def call(self, key: str, function: Callable[[], T]) -> T | None:
        """Return the result of a function, or raise its exception; None if it hangs.

        Only jobs may call this. Equal calls have equal keys.
        """
        attempt: _Attempt | None = getattr(self._of_thread, "attempt", None)
        if attempt is None:
            raise TypeError("a call without a job")
        if attempt.abandoned.is_set():
            raise _AbandonedError
        if key in self._hung:
            return None
        attempt.current = (key, time.monotonic())
        try:
            return function()
        finally:
            with self._lock:
                attempt.current = None
                if attempt.abandoned.is_set():
                    self._hung.discard(key)
                    raise _AbandonedError

    def _is_finished(
        self, running: BackgroundCall[Any], attempt: _Attempt, limit: float, deadline: float
    ) -> bool:
        """Wait for the end of a job. Abandon it when its time or a call's time is over."""
        while True:
            now = time.monotonic()
            current = attempt.current
            end = deadline if current is None else min(deadline, current[1] + limit)
            # Between two calls the next one can start at any time: poll soon.
            if running.wait(min(end - now, limit)):
                return True
            with self._lock:
                current = attempt.current
                now = time.monotonic()
                if now < deadline and (current is None or now < current[1] + limit):
                    continue
                attempt.abandoned.set()
                if current is not None:
                    self._hung.add(current[0])
                return False


_JOIN = 2.0


class Poller:
    """Calls `function` when `interval` seconds have passed without a call of `note`.

    Energy counters wrap within minutes. The poller reads them between samples with a longer
    interval. `lock` prevents simultaneous readings by the function and the caller.
    """

    def __init__(self, function: Callable[[], None], interval: float, name: str) -> None:
        self.interval = interval
        self.lock = threading.Lock()
        self._function = function
        self._name = name
        self._noted = time.monotonic()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, once. Log if it can't be started."""
        if self.is_running or self._closing.is_set():
            return
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("%s: %s", self._name, error)
            return
        self._thread = thread

    def note(self) -> None:
        """Note that the counters were just read."""
        self._noted = time.monotonic()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN)

    def _run(self) -> None:
        while not self._closing.wait(max(0.001, self._noted + self.interval - time.monotonic())):
            if time.monotonic() < self._noted + self.interval:
                continue
            with self.lock:
                try:
                    self._function()
                except CcagentError as error:
                    logger.debug("%s: %s", self._name, error)
                except Exception:  # noqa: BLE001 - the thread goes on
                    logger.exception("%s: unforeseen error", self._name)
            self.note()


_PIECE = 256 * 1024
_PIECES_AHEAD = 2
_PAUSE = 0.5


def chunks(open_file: Callable[[], int], path: str, time_limit: float) -> Iterator[bytes]:
    """Yield the content of a file; see `Node.chunks`. `open_file` returns its descriptor."""
    reader = _ChunkReader(open_file)
    deadline = time.monotonic() + time_limit
    try:
        while True:
            left = deadline - time.monotonic()
            try:
                # The time limit also applies if pieces arrive steadily.
                piece = reader.pieces.get(timeout=left) if left > 0 else None
            except queue.Empty:
                piece = None
            if piece is None:
                raise ProgramError(f"/{path}: not read within {time_limit:g} s")
            if isinstance(piece, CcagentError):
                raise piece
            if isinstance(piece, OSError):
                raise_for(path, piece)
            if not piece:
                return
            yield piece
    finally:
        reader.is_wanted = False


class _ChunkReader:
    """Reads ahead. Closes the file at its end, after an error, or when the consumer stops."""

    def __init__(self, open_file: Callable[[], int]) -> None:
        self.pieces: queue.Queue[bytes | OSError | CcagentError] = queue.Queue(_PIECES_AHEAD)
        self.is_wanted = True
        self._open = open_file
        BackgroundCall(self._read, "reader")

    def _read(self) -> None:
        try:
            descriptor = self._open()
        except CcagentError as error:
            self._put(error)
            return
        try:
            while self.is_wanted:
                # The kernel returns a generated file page by page.
                parts: list[bytes] = []
                size = 0
                while size < _PIECE and (part := os.read(descriptor, _PIECE)):
                    parts.append(part)
                    size += len(part)
                self._put(parts[0] if len(parts) == 1 else b"".join(parts))
                if not parts:
                    return
        except OSError as error:
            self._put(error)
        finally:
            os.close(descriptor)

    def _put(self, piece: bytes | OSError | CcagentError) -> None:
        while self.is_wanted:
            try:
                self.pieces.put(piece, timeout=_PAUSE)
            except queue.Full:
                continue
            return
