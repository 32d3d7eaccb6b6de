"""The poller calls a function when nobody else has, and survives what it raises."""

from __future__ import annotations

import threading
import time

from ccagent.errors import NotHereError
from ccagent.machine.background import Poller


def test_it_calls_again_and_again_and_ends() -> None:
    called = threading.Semaphore(0)
    errors: list[Exception] = [NotHereError("x"), ZeroDivisionError("a bug")]

    def call() -> None:
        called.release()
        if errors:
            raise errors.pop()

    poller = Poller(call, 0.001, "test")
    poller.start()
    poller.start()
    for _ in range(4):
        assert called.acquire(timeout=30)
    assert poller.is_running
    poller.close()
    poller.start()
    assert [thread for thread in threading.enumerate() if thread.name == "test"] == []


def test_it_does_not_call_while_others_do() -> None:
    calls: list[int] = []
    poller = Poller(lambda: calls.append(1), 3600.0, "test")
    poller.start()
    poller.note()
    time.sleep(0.01)
    poller.close()
    assert calls == []


def test_it_waits_for_the_lock() -> None:
    called = threading.Event()
    poller = Poller(called.set, 0.001, "test")
    with poller.lock:
        poller.start()
        time.sleep(0.02)
        assert not called.is_set()
    assert called.wait(30)
    poller.close()
