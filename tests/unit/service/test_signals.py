"""How the daemon receives its signals."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ccagent.service.signals import ReceivedSignals, WakeUp

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def wake_up() -> Iterator[WakeUp]:
    handlers = {number: signal.getsignal(number) for number in NUMBERS}
    pipe = WakeUp()
    yield pipe
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    pipe.close()


def is_readable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def test_each_signal_is_taken_once_however_often_it_came(wake_up: WakeUp) -> None:
    received = ReceivedSignals()
    received.receive(wake_up.writer, respects_nohup=False)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGHUP):
        os.kill(os.getpid(), number)
    assert received.take() == {signal.SIGHUP, signal.SIGUSR1}
    assert received.take() == set()


def test_a_signal_wakes_who_waits(wake_up: WakeUp) -> None:
    ReceivedSignals().receive(wake_up.writer, respects_nohup=False)
    assert not is_readable(wake_up.descriptor)
    os.kill(os.getpid(), signal.SIGTERM)
    assert is_readable(wake_up.descriptor)


def test_no_handler_runs_python_code_that_others_could_interrupt(wake_up: WakeUp) -> None:
    """Or thousands of signals nest, and the innermost handler raises RecursionError."""
    ReceivedSignals().receive(wake_up.writer, respects_nohup=False)
    for number in NUMBERS:
        handler = signal.getsignal(number)
        assert callable(handler)
        assert not hasattr(handler, "__code__")
        assert not hasattr(type(handler), "__code__")


@pytest.mark.parametrize(("respects", "is_ignored"), [(True, True), (False, False)])
def test_nohup_is_respected_where_no_daemon_answers(
    wake_up: WakeUp, respects: bool, is_ignored: bool
) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ReceivedSignals().receive(wake_up.writer, respects_nohup=respects)
    assert (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN) is is_ignored


_ENDS_SLOWLY = """
import time
from ccagent.service.signals import TimeLimit
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)
slow = Slow()
with TimeLimit(0.05, "late"):
    pass
"""


@pytest.mark.slow
def test_the_timer_of_a_limit_does_not_kill_a_process_that_exits() -> None:
    done = subprocess.run([sys.executable, "-c", _ENDS_SLOWLY], check=False)
    assert done.returncode == 0
