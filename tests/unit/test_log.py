"""The log: one line a message, with its priority, and not the same again and again."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccagent.agents.log import MessageBuffer
from ccagent.log import configure, is_journal, logger, printable, say

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccagent.log import LogFormat, LogLevel


class Log:
    """What was logged, and a clock that the test moves."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.now = 1000.0
        self.text = io.StringIO()
        patch.setattr("ccagent.log_handlers.time", SimpleNamespace(monotonic=lambda: self.now))

    def begin(
        self,
        verbosity: int = 0,
        form: LogFormat = "journal",
        level: LogLevel = "warning",
        *,
        is_brief: bool = False,
    ) -> None:
        self.text = io.StringIO()
        self._patch.setattr(sys, "stderr", self.text)
        configure(verbosity, level, form, is_brief=is_brief)

    @property
    def lines(self) -> list[str]:
        return self.text.getvalue().splitlines()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    library = logger.library()
    handlers, propagate, level = library.handlers[:], library.propagate, library.level
    library.handlers.clear()
    yield Log(monkeypatch)
    library = logger.library()
    library.handlers[:] = handlers
    library.propagate = propagate
    library.setLevel(level)


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


def test_text_has_words_instead_of_priorities(log: Log) -> None:
    log.begin(1, "text")
    say_everything()
    assert log.lines == ["ccagent: info: i", "ccagent: warning: w", "ccagent: error: e 1"]


def test_json_is_one_object_a_line(log: Log) -> None:
    log.begin(0, "json")
    logger.warning("a\n%s", "größer \x1b")
    (line,) = log.lines
    assert line.isascii()
    record = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record.pop("time"))
    assert record == {"level": "warning", "message": "a\ngrößer \x1b"}


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        ("error", ["<3>e 1"]),
        ("warning", ["<4>w", "<3>e 1"]),
        ("info", ["<6>i", "<4>w", "<3>e 1"]),
        ("debug", ["<7>d", "<6>i", "<4>w", "<3>e 1"]),
    ],
)
@pytest.mark.parametrize("is_brief", [False, True])
def test_the_configured_level(log: Log, level: LogLevel, lines: list[str], is_brief: bool) -> None:
    log.begin(0, "journal", level, is_brief=is_brief)
    say_everything()
    assert log.lines == lines


def test_an_option_makes_the_log_longer_never_shorter(log: Log) -> None:
    log.begin(1, "journal", "debug")
    say_everything()
    assert log.lines == ["<7>d", "<6>i", "<4>w", "<3>e 1"]


def test_priorities_are_for_the_stream_that_systemd_has_opened(
    log: Log, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "stream").open("w") as stream:
        status = os.fstat(stream.fileno())
        named = f"{status.st_dev}:{status.st_ino}"
        for environment, is_its in [
            ({"JOURNAL_STREAM": named}, True),
            ({"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino + 1}"}, False),
            ({"JOURNAL_STREAM": ""}, False),
            ({}, False),
        ]:
            assert is_journal(environment, stream.fileno()) == is_its
    assert not is_journal({"JOURNAL_STREAM": named}, 9999)
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    log.begin(0, "auto")
    logger.warning("w")
    assert log.lines == ["ccagent: warning: w"]


def test_to_configure_again_keeps_handlers_and_what_was_said(log: Log) -> None:
    log.begin()
    others = logging.NullHandler()
    logger.library().addHandler(others)
    logger.warning("w")
    configure(0, "warning", "text")
    logger.warning("w")
    logger.warning("v")
    assert log.lines == ["<4>w", "ccagent: warning: v"]
    assert others in logger.library().handlers


def test_a_brief_log_turns_to_an_ordinary_one_for_whoever_listens(log: Log) -> None:
    log.begin(0, "journal", is_brief=True)
    logger.warning("w %d", 1)
    logger.warning("w 1")
    logger.info("i")
    said: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.library().addHandler(listener)
    logger.warning("w %d", 2)
    logger.library().removeHandler(listener)
    assert log.lines == ["<4>w 1", "<4>w 2"]
    assert said == ["w 2"]


def test_without_stderr_nothing_is_raised(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_brief in (False, True):
        log.begin(is_brief=is_brief)
        monkeypatch.setattr(sys, "stderr", None)
        logger.error("e")


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


@pytest.mark.parametrize("is_brief", [False, True])
def test_the_traceback_of_an_exception_that_is_passed_on(log: Log, is_brief: bool) -> None:
    log.begin(is_brief=is_brief)
    try:
        raise ValueError("a")  # noqa: TRY301 - this is what is logged
    except ValueError as error:
        caught = error
    logger.warning("failed", exc_info=caught)
    (line,) = log.lines
    assert line.startswith("<4>failed Traceback")
    assert line.endswith("ValueError: a")


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


def test_a_key_holds_back_texts_that_a_sender_chooses(log: Log) -> None:
    log.begin()
    for number in range(1000):
        logger.warning("%d bad lines of %s", number, f"subject{number}", key="bad lines")
        say(f"sender {number} was accepted", key="accepted")
    logger.warning("disk is full")
    assert log.lines == [
        "<4>0 bad lines of subject0",
        "<6>sender 0 was accepted",
        "<4>disk is full",
    ]
    log.now += 3600
    logger.warning("7 bad lines of subject7", key="bad lines")
    assert log.lines[3:] == [
        "<4>7 bad lines of subject7 (and 999 more like it in the last hour)",
    ]


def test_a_command_writes_one_line_of_a_key_too(log: Log) -> None:
    log.begin(is_brief=True)
    for number in range(10):
        logger.warning("message %d is refused", number, key="refused")
    assert log.lines == ["<4>message 0 is refused"]


def test_two_handlers_count_the_same(log: Log) -> None:
    log.begin()
    second = MessageBuffer("warning")
    logger.library().addHandler(second)
    for _ in range(3):
        logger.warning("w")
    log.now += 3600
    logger.warning("w")
    assert log.lines == ["<4>w", "<4>w (and 2 times in the last hour)"]
    assert [text for _, text, _ in second.take()] == ["w", "w (and 2 times in the last hour)"]


def test_what_is_remembered_is_bounded(log: Log) -> None:
    log.begin()
    for number in range(5000):
        logger.warning("process %d", number)
    (throttle,) = logger.library().handlers[0].filters
    assert len(vars(throttle)["_said"]) <= 1000
