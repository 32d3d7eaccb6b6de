"""Calls in threads of their own: their end, their results, and unforeseen errors."""

from __future__ import annotations

import threading

import pytest

from ccagent.errors import NotHereError, ProgramError
from ccagent.machine.background import BackgroundCall
from ccagent.machine.node import Node


def test_a_call_has_a_result_once_it_is_done() -> None:
    release = threading.Event()
    call = BackgroundCall(lambda: release.wait(30), "test")
    assert not call.wait(0.0)
    assert not call.is_done
    release.set()
    assert call.wait(30)
    assert call.result() is True
    assert call.checked_result() is True


def test_the_end_is_announced_after_the_result_is_there() -> None:
    announced = threading.Event()
    call = BackgroundCall(lambda: 1, "test", announced.set)
    assert announced.wait(30)
    assert call.is_done


def test_errors_of_the_machine_are_raised_as_they_are() -> None:
    def fail() -> None:
        raise NotHereError("no such thing")

    call = BackgroundCall(fail, "test")
    assert call.wait(30)
    for result in (call.result, call.checked_result):
        with pytest.raises(NotHereError, match="no such thing"):
            result()


def test_an_unforeseen_error_is_a_program_error_with_its_cause() -> None:
    call = BackgroundCall(lambda: 1 // 0, "test")
    assert call.wait(30)
    with pytest.raises(ZeroDivisionError):
        call.result()
    with pytest.raises(ProgramError, match="ZeroDivisionError: ") as raised:
        call.checked_result()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_without_a_thread_a_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ProgramError, match="test: can't start new thread"):
        BackgroundCall(lambda: 1, "test")


def test_without_a_thread_a_file_is_not_read_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ProgramError, match="can't start new thread"):
        next(Node(hostname="c1").chunks("proc/stat", time_limit=30))
