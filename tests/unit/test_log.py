"""The log: one line a message, with its priority, and not the same again and again."""

from __future__ import annotations

import io
import logging
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.log import configure, logger, printable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(io.StringIO):
    """Text that says it goes to a terminal."""

    def isatty(self) -> bool:
        return True


class Log:
    """What was logged, and a clock that the test moves."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.now = 1000.0
        self.text = io.StringIO()
        patch.setattr("ccagent.log.time", SimpleNamespace(monotonic=lambda: self.now))

    def begin(self, verbosity: int = 0, text: io.StringIO | None = None) -> None:
        self.text = text or io.StringIO()
        self._patch.setattr(sys, "stderr", self.text)
        configure(verbosity)

    @property
    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    handlers, propagate, level = logger.handlers[:], logger.propagate, logger.level
    yield Log(monkeypatch)
    logger.handlers[:] = handlers
    logger.propagate = propagate
    logger.setLevel(level)


def say_everything() -> None:
    logger.debug("d")
    logger.info("i")
    logger.warning("w")
    logger.error("e %d", 1)


@pytest.mark.parametrize(
    ("verbosity", "lines"),
    [
        (0, ["<4>w", "<3>e 1"]),
        (1, ["<6>i", "<4>w", "<3>e 1"]),
        (2, ["<7>d", "<6>i", "<4>w", "<3>e 1"]),
        (3, ["<7>d", "<6>i", "<4>w", "<3>e 1"]),
    ],
)
def test_the_journal_gets_priorities(log: Log, verbosity: int, lines: list[str]) -> None:
    log.begin(verbosity)
    say_everything()
    assert log.lines == lines


def test_a_terminal_gets_words(log: Log) -> None:
    log.begin(1, Terminal())
    say_everything()
    assert log.lines == ["ccagent: info: i", "ccagent: warning: w", "ccagent: error: e 1"]


def test_to_configure_again_does_not_double_the_log(log: Log) -> None:
    log.begin()
    configure()
    logger.warning("w")
    assert log.lines == ["<4>w"]


def test_no_other_library_is_heard(log: Log) -> None:
    log.begin(2)
    logging.getLogger("urllib3").setLevel(logging.DEBUG)
    logging.getLogger("ccagentx").error("e")
    assert log.lines == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, größer 机器", "plain, größer 机器"),
        ("a\n<0>panic", "a\\n<0>panic"),
        ("a\r\nb\tc", "a\\r\\nb\\tc"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x00\x7f\x85", "\\x00\\x7f\\x85"),
        ("\u2028\u202e", "\\u2028\\u202e"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_escaped(log: Log, text: str, shown: str) -> None:
    assert printable(text) == shown
    log.begin()
    logger.warning("%s", text)
    assert log.lines == [f"<4>{shown}"]


@given(st.text())
def test_what_is_printable_is_one_line(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    assert shown == text or not text.isprintable()


def test_a_traceback_is_one_line_too(log: Log) -> None:
    log.begin()
    try:
        raise ValueError("a\nb")  # noqa: TRY301 - this is what is logged
    except ValueError:
        logger.exception("failed")
    (line,) = log.lines
    assert line.startswith("<3>failed Traceback (most recent call last): | File ")
    assert "ValueError: a | b" in line


def test_a_complaint_is_said_once_an_hour(log: Log) -> None:
    log.begin()
    for _ in range(10):
        logger.warning("disk %s is full", "/a")
        log.now += 359
    assert log.lines == ["<4>disk /a is full"]
    log.now += 11
    logger.warning("disk %s is full", "/a")
    logger.warning("disk %s is full", "/a")
    assert log.lines[1:] == ["<4>disk /a is full (and 9 times in the last hour)"]


def test_a_complaint_that_was_rare_is_repeated_as_it_is(log: Log) -> None:
    log.begin()
    logger.warning("w")
    log.now += 3600
    logger.warning("w")
    assert log.lines == ["<4>w", "<4>w"]


def test_other_complaints_are_not_held_back(log: Log) -> None:
    log.begin()
    logger.warning("disk %s is full", "/a")
    logger.warning("disk %s is full", "/b")
    logger.error("disk %s is full", "/a")
    assert log.lines == ["<4>disk /a is full", "<4>disk /b is full", "<3>disk /a is full"]


def test_information_is_never_held_back(log: Log) -> None:
    log.begin(2)
    for _ in range(3):
        logger.info("i")
        logger.debug("d")
    assert log.lines == ["<6>i", "<7>d"] * 3


def test_what_is_remembered_is_bounded(log: Log) -> None:
    log.begin()
    for number in range(5000):
        logger.warning("process %d", number)
    (throttle,) = logger.handlers[0].filters
    assert len(vars(throttle)["_said"]) <= 1000
